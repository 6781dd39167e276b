# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Events' do
  it { is_expected.to allow_values(true, false, {}, { 'types' => ['Service'], 'titles' => ['web*', '/etc/*'], 'tags' => ['profile::lb'], 'only' => 'failed', 'values' => true }) }
  it { is_expected.not_to allow_values('true', ['Service'], { 'types' => [] }, { 'types' => 'Service' }, { 'only' => 'changed' }, { 'titles' => ["a\nb"] }, { 'other' => 1 }, nil) }
end
