# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Command' do
  it { is_expected.to allow_values(['puppet'], ['/opt/run "it"', '', "a\nb", "\u00fc"]) }
  it { is_expected.not_to allow_values([], [''], 'puppet', ['a', 1], ["a\u0000b"], ['a', "\u0000"], nil) }
end
