# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Platform' do
  [{ 'package' => 'p', 'service' => 's', 'user' => 'u', 'config' => '/c', 'client' => 'x' }, { 'package' => 'p', 'service' => 's', 'user' => 'u', 'config' => '/c' }].each do |value|
    it { is_expected.to allow_value(value) }
  end

  [{ 'package' => 'p' }, { 'package' => 'p', 'service' => 's', 'user' => 'u', 'config' => 'c' }, nil, 'x'].each do |value|
    it { is_expected.not_to allow_value(value) }
  end
end
