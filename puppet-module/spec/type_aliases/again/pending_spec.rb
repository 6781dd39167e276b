# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Pending' do
  [{ 'save_environment' => false, 'scope' => 'never', 'container' => 'stays', 'hold_before_shutdown' => '10m', 'stuck' => 'end' }, {}].each do |value|
    it { is_expected.to allow_value(value) }
  end

  [{ 'scope' => true }, { 'container' => 'ends' }, { 'hold_before_shutdown' => -1 }, { 'stuck' => 'kill' }, { 'other' => 1 }, nil, 'x'].each do |value|
    it { is_expected.not_to allow_value(value) }
  end
end
