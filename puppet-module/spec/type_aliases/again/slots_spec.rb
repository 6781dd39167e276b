# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Slots' do
  it { is_expected.to allow_values({ 'group' => 'puppetserver', 'limit' => 8 }, { 'group' => 'g', 'limit' => 1, 'required' => true, 'prerun' => false, 'max_wait' => '20m' }) }
  it { is_expected.not_to allow_values({ 'group' => 'g' }, { 'limit' => 8 }, { 'group' => '', 'limit' => 8 }, { 'group' => "a\nb", 'limit' => 8 }, { 'group' => 'g', 'limit' => 0 }, { 'group' => 'é' * 65, 'limit' => 8 }, true, nil) }
  %w[1d 24h 999m 9999 20s].push(86_400).each { |time| it { is_expected.to allow_value({ 'group' => 'g', 'limit' => 8, 'max_wait' => time }) } }
  %w[2d 25h 0 0s 0m 1w long].push(0, 86_401).each { |time| it { is_expected.not_to allow_value({ 'group' => 'g', 'limit' => 8, 'max_wait' => time }) } }
  it { is_expected.not_to allow_value({}) }
end
