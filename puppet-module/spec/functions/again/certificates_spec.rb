# frozen_string_literal: true

require 'spec_helper'
require 'support/authority'

describe 'common::again::certificates' do
  include Authority

  it 'says of each name whether one of its certificates is valid' do
    authority(<<~LINES, revoked: [3, 16], above: [2])
      0x0001 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=Puppet CA: test
      0x0002 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=web1.example.com
      0x0003 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=revoked.example.com
      0x0004 2020-01-01T00:00:00UTC 2021-01-01T00:00:00UTC /CN=expired.example.com
      0x0010 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=rebuilt.example.com
      0x0011 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=rebuilt.example.com
      0x0012 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=rebuilt.example.com
      0x0013 2020-01-01T00:00:00UTC 2120-01-01T00:00:00UTC /CN=app_1-a.example.com
      a line of something else
    LINES
    is_expected.to run.and_return(
      'app_1-a.example.com' => true, 'expired.example.com' => false, 'rebuilt.example.com' => true, 'revoked.example.com' => false, 'web1.example.com' => true,
    )
  end

  it 'knows nothing where there is no CA' do
    is_expected.to run.and_return(nil)
  end

  it 'fails where the revocation list of the CA is missing' do
    authority(entry(1, 'web1.example.com'))
    File.delete("#{@dir}/ca_crl.pem")
    is_expected.to run.and_raise_error(%r{No such file .*ca_crl\.pem})
  end
end
