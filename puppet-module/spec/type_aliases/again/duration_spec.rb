# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Duration' do
  it { is_expected.to allow_values(0, 120, 315_360_000, '0', '007', '99999999', '90s', '2m', '999999m', '1h', '9999h', '1d', '999d') }
  it { is_expected.not_to allow_values(-1, 315_360_001, 1.5, '', 's', '1.5', '-1', '1w', '1y', '2 m', "1\n", "\n1", "\u0661", nil) }
  it { is_expected.not_to allow_values('999999999', '9999999m', '99999h', '9999d') }
end
