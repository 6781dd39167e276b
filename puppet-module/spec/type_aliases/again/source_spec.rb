# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Source' do
  it { is_expected.to allow_values('/opt/again', 'puppet:///modules/profile/again', 'file:///opt/a b', 'https://files.example.com/again', 'http://x/y') }
  it { is_expected.not_to allow_values('', 'again', 'ftp://x/y', "/a\nb", 'https:x', nil, 7) }
end
