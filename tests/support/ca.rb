# A certificate authority, its revocation list and one certificate, laid out as Puppet's ssldir.
require 'fileutils'
require 'openssl'

dir, name = ARGV
YEARS = 10 * 365 * 86_400

def certificate(name, key, issuer, issuer_key, serial)
  cert = OpenSSL::X509::Certificate.new
  cert.version = 2
  cert.serial = serial
  cert.not_before = Time.now - 86_400
  cert.not_after = Time.now + YEARS
  cert.subject = OpenSSL::X509::Name.new([['CN', name]])
  cert.issuer = issuer ? issuer.subject : cert.subject
  cert.public_key = key.public_key
  factory = OpenSSL::X509::ExtensionFactory.new(issuer || cert, cert)
  cert.add_extension(factory.create_extension('basicConstraints', issuer ? 'CA:FALSE' : 'CA:TRUE', true))
  cert.add_extension(factory.create_extension('keyUsage', issuer ? 'digitalSignature,keyEncipherment' : 'cRLSign,keyCertSign', true))
  cert.add_extension(factory.create_extension('subjectKeyIdentifier', 'hash'))
  cert.sign(issuer_key, OpenSSL::Digest.new('SHA256'))
end

ca_key = OpenSSL::PKey::RSA.new(2048)
ca = certificate('again rig CA', ca_key, nil, ca_key, 1)
key = OpenSSL::PKey::RSA.new(2048)
cert = certificate(name, key, ca, ca_key, 2)
crl = OpenSSL::X509::CRL.new
crl.version = 1
crl.issuer = ca.subject
crl.last_update = Time.now - 86_400
crl.next_update = Time.now + YEARS
crl.add_extension(OpenSSL::X509::Extension.new('crlNumber', OpenSSL::ASN1::Integer(0)))
crl.sign(ca_key, OpenSSL::Digest.new('SHA256'))

%w[certs private_keys public_keys].each { |sub| FileUtils.mkdir_p("#{dir}/#{sub}") }
File.write("#{dir}/certs/ca.pem", ca.to_pem)
File.write("#{dir}/crl.pem", crl.to_pem)
File.write("#{dir}/certs/#{name}.pem", cert.to_pem)
File.write("#{dir}/public_keys/#{name}.pem", key.public_key.to_pem)
File.write("#{dir}/private_keys/#{name}.pem", key.to_pem)
