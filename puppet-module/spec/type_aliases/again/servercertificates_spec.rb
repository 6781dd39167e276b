# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::ServerCertificates' do
  [{ 'cert' => '/c.pem', 'key' => '/my key.pem', 'ca' => '/ca.pem', 'crl' => '/crl.pem' }, {}].each do |value|
    it { is_expected.to allow_value(value) }
  end

  [{ 'cert' => 'c.pem' }, { 'revocation' => 'off' }, nil, 'x'].each do |value|
    it { is_expected.not_to allow_value(value) }
  end
end
