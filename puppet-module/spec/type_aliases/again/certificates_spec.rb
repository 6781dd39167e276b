# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Certificates' do
  [{ 'cert' => '/c.pem', 'key' => '/k.pem', 'ca' => '/ca.pem', 'crl' => '/crl.pem', 'revocation' => 'leaf' }, {}].each do |value|
    it { is_expected.to allow_value(value) }
  end

  [{ 'cert' => 'c.pem' }, { 'key' => '/my key' }, { 'revocation' => true }, { 'chain' => '/x' }, nil, 'x'].each do |value|
    it { is_expected.not_to allow_value(value) }
  end
end
