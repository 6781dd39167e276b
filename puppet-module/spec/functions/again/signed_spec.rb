# frozen_string_literal: true

require 'spec_helper'
require 'openssl'

describe 'common::again::signed' do
  around do |example|
    Dir.mktmpdir('again-ca') { |dir| (@dir = dir) && example.run }
  end

  before { { cert_inventory: 'inventory.txt', cacert: 'ca_crt.pem', cacrl: 'ca_crl.pem' }.each { |name, file| Puppet[name] = "#{@dir}/#{file}" } }

  let(:key) { OpenSSL::PKey::RSA.new(2048) }

  # A CA with an inventory of these lines, and lists of what it and the one above it have revoked.
  def authority(lines, revoked: [], above: [])
    ours = OpenSSL::X509::Name.parse('/CN=Puppet CA: test')
    certificate = OpenSSL::X509::Certificate.new
    certificate.subject = certificate.issuer = ours
    certificate.public_key = key.public_key
    certificate.not_before = certificate.not_after = Time.now
    certificate.sign(key, OpenSSL::Digest.new('SHA256'))
    lists = [[ours, revoked], [OpenSSL::X509::Name.parse('/CN=Root'), above]].map { |issuer, serials| list(issuer, serials) }
    File.write("#{@dir}/ca_crt.pem", certificate.to_pem)
    File.write("#{@dir}/ca_crl.pem", lists.map(&:to_pem).join)
    File.write("#{@dir}/inventory.txt", lines)
  end

  def list(issuer, serials)
    list = OpenSSL::X509::CRL.new
    list.issuer = issuer
    list.last_update = Time.now
    list.next_update = Time.now + 3600
    serials.each do |serial|
      entry = OpenSSL::X509::Revoked.new
      entry.serial = serial
      entry.time = Time.now
      list.add_revoked(entry)
    end
    list.sign(key, OpenSSL::Digest.new('SHA256'))
  end

  it 'has each name once whose certificate counts' do
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
    is_expected.to run.and_return(%w[app_1-a.example.com rebuilt.example.com web1.example.com])
  end

  it 'says where there is no CA, and what to do' do
    is_expected.to run.and_raise_error(%r{there is no CA where this catalog is compiled .*inventory\.txt.*: set common::again::engine::nodes}i)
  end
end
