# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Checksum' do
  it { is_expected.to allow_values('0' * 64, '0123456789abcdef' * 4) }
  it { is_expected.not_to allow_values('', '0' * 63, '0' * 65, 'A' * 64, "#{'0' * 64}\n", '{sha256}', nil) }
end
