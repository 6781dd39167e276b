# frozen_string_literal: true

require 'openssl'

# The files of a Puppet CA, in a temporary directory to which Puppet's settings point for each example.
module Authority
  def self.included(group)
    group.around do |example|
      Dir.mktmpdir('again-ca') { |dir| (@dir = dir) && example.run }
    end
    group.before { { cert_inventory: 'inventory.txt', cacert: 'ca_crt.pem', cacrl: 'ca_crl.pem' }.each { |name, file| Puppet[name] = "#{@dir}/#{file}" } }
    group.let(:key) { OpenSSL::PKey::RSA.new(2048) }
  end

  # A line of the inventory, for a certificate that is valid until this year.
  def entry(serial, name, year = 2120)
    format("0x%04x 2020-01-01T00:00:00UTC %d-01-01T00:00:00UTC /CN=%s\n", serial, year, name)
  end

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
end
