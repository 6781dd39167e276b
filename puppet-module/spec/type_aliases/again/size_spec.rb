# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Size' do
  it { is_expected.to allow_values(0, 500_000, '0', '500000', '500K', '16M', '1G') }
  it { is_expected.not_to allow_values(-1, 1.5, '', 'M', '16MB', '1.5G', '16 M', '16m', '-1', "1\n", '9999999999', nil) }
end
