# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Logs' do
  [{ 'log_dir' => '/srv/log', 'keep_logs' => 0, 'max_log_size' => '4M', 'max_logs_size' => 5_000_000 }, {}].each do |value|
    it { is_expected.to allow_value(value) }
  end

  [{ 'log_dir' => 'relative' }, { 'keep_logs' => -1 }, { 'max_log_size' => '1T' }, { 'max_logs_size' => '1.5M' }, { 'keep' => 1 }, nil, 'x'].each do |value|
    it { is_expected.not_to allow_value(value) }
  end
end
