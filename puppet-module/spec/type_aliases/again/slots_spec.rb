# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Slots' do
  it { is_expected.to allow_values({ 'group' => 'puppetserver', 'limit' => 8 }, { 'group' => 'g', 'limit' => 1, 'required' => true, 'max_wait' => '20m' }) }
  it { is_expected.not_to allow_values({ 'group' => 'g' }, { 'limit' => 8 }, { 'group' => '', 'limit' => 8 }, { 'group' => "a\nb", 'limit' => 8 }, { 'group' => 'g', 'limit' => 0 }, { 'group' => 'g', 'limit' => 8, 'max_wait' => 'long' }, true, nil) }
end
