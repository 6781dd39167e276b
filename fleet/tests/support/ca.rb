# A Puppet CA and certificates of nodes, made by the code of `puppetserver ca` itself, and some that no Puppet CA would make.
#   ruby ca.rb DIRECTORY [COUNT]
# leaves ca.pem, crl.pem (issuer's first), NAME.pem and NAME.key, and what each is for is said below. With a count all keys of CAs are as long as
# Puppet makes them, and so is the one that so many nodes share: m0001.test and so on, in crowd.pem and crowd.key.
require 'fileutils'
require 'openssl'
require 'puppet'
require 'puppetserver/ca/local_certificate_authority'
require 'puppetserver/ca/config/puppet'
require 'puppetserver/ca/host'
require 'puppetserver/ca/utils/signing_digest'

Dir.chdir(ARGV.fetch(0))
COUNT = ARGV.fetch(1, 0).to_i
BITS = COUNT.zero? ? 2048 : 4096
SIGNED = OpenSSL::Digest.new('SHA256')
DAY = 86_400

class Quiet
  def warn(*); end
end

# What `puppetserver ca setup` makes in there: a root, and an intermediate CA that signs.
def authority(dir)
  FileUtils.mkdir_p(dir)
  File.write("#{dir}/puppet.conf", "[main]\nssldir = #{Dir.pwd}/#{dir}\ncadir = #{Dir.pwd}/#{dir}/ca\ncertname = ca.test\nkeylength = #{BITS}\nca_name = Puppet CA\ncsr_attributes = #{Dir.pwd}/#{dir}/csr_attributes.yaml\n")
  config = Puppetserver::Ca::Config::Puppet.new("#{dir}/puppet.conf")
  config.load(logger: Quiet.new, ca_dir_warn: false)
  ca = Puppetserver::Ca::LocalCertificateAuthority.new(SIGNED, config.settings)
  FileUtils.mkdir_p(["#{dir}/ca", "#{dir}/private_keys", "#{dir}/public_keys"])
  root_key, root, root_crl = ca.create_root_cert
  ca.create_intermediate_cert(root_key, root)
  { ca: ca, root: root, root_key: root_key, root_crl: root_crl, settings: config.settings, dir: dir }
end

def issue(at, name, key, extensions = nil)
  attributes = "#{at[:dir]}/csr_attributes.yaml"
  extensions ? File.write(attributes, { 'extension_requests' => extensions }.to_yaml) : FileUtils.rm_f(attributes)
  # It remembers the extensions of the first one.
  at[:ca].instance_variable_set(:@host, Puppetserver::Ca::Host.new(SIGNED))
  # Puppet's own maker of requests cannot handle EC keys with OpenSSL 3.
  csr = OpenSSL::X509::Request.new
  csr.subject = OpenSSL::X509::Name.new([['CN', name]])
  csr.public_key = OpenSSL::PKey.read(key.public_to_der)
  csr.sign(key, SIGNED)
  cert = at[:ca].sign_authorized_cert(csr, "DNS:#{name}, DNS:localhost")
  raise "#{name}: #{at[:ca].errors}" unless cert

  File.write(at[:settings][:serial], (cert.serial + 1).to_s(16))
  cert
end

def save(name, cert, key)
  File.write("#{name}.pem", cert.to_pem)
  File.write("#{name}.key", key.respond_to?(:to_pem) ? key.to_pem : key.private_to_pem)
end

def crl(cert, key, revoked = [], to: Time.now + (365 * DAY), number: 1)
  list = OpenSSL::X509::CRL.new
  list.version = 1
  list.issuer = cert.subject
  list.last_update = Time.now - (2 * DAY)
  list.next_update = to
  revoked.each do |serial|
    entry = OpenSSL::X509::Revoked.new
    entry.serial = serial
    entry.time = Time.now - DAY
    list.add_revoked(entry)
  end
  list.add_extension(OpenSSL::X509::Extension.new('crlNumber', OpenSSL::ASN1::Integer(number)))
  list.sign(key, SIGNED)
end

# A certificate as the CA makes it, but for what the block changes before it is signed.
def bent(at, key, name = 'bent.test')
  cert = issue(at, name, key)
  yield cert
  cert.sign(at[:ca].key, SIGNED)
end

puppet = authority('puppet')
ca = puppet[:ca]
rsa = OpenSSL::PKey::RSA.new(2048)
other = OpenSSL::PKey::RSA.new(2048)
ec = OpenSSL::PKey::EC.generate('prime256v1')
ec384 = OpenSSL::PKey::EC.generate('secp384r1')

# What servers and nodes of the tests have.
File.write('ca.pem', ca.cert.to_pem + puppet[:root].to_pem)
File.write('crl.pem', ca.crl.to_pem + puppet[:root_crl].to_pem)
save('server.test', issue(puppet, 'server.test', rsa), rsa)
web1 = issue(puppet, 'web1.test', rsa, 'pp_role' => 'frontend', '1.3.6.1.4.1.34380.1.2.1' => 'ours', 'pp_auth_role' => 'boss')
save('web1.test', web1, rsa)
save('web2.test', issue(puppet, 'web2.test', ec), ec)
save('lb1.test', issue(puppet, 'lb1.test', ec384), ec384)
File.write('web1.pkcs8.key', rsa.private_to_pem)
# And many more.
(1..100).each { |n| save(format('n%02d.test', n), issue(puppet, format('n%02d.test', n), ec), ec) }

# Revocation lists: web1 revoked; the intermediate CA revoked; too old; the leaf CA's only.
root = [puppet[:root], puppet[:root_key]]
File.write('crl-web1.pem', crl(ca.cert, ca.key, [web1.serial]).to_pem + puppet[:root_crl].to_pem)
File.write('crl-ca.pem', ca.crl.to_pem + crl(*root, [ca.cert.serial]).to_pem)
File.write('crl-old.pem', crl(ca.cert, ca.key, to: Time.now - DAY).to_pem + puppet[:root_crl].to_pem)
File.write('crl-leaf.pem', ca.crl.to_pem)
# Two lists of one CA, of which the older comes first: by their numbers, and by their dates.
web1_revoked = crl(ca.cert, ca.key, [web1.serial], number: 300)
File.write('crl-twice.pem', crl(ca.cert, ca.key, number: 2).to_pem + web1_revoked.to_pem + puppet[:root_crl].to_pem)
same_number = [crl(ca.cert, ca.key), crl(ca.cert, ca.key, [web1.serial])].zip([3, 2]).map do |list, days|
  list.last_update = Time.now - (days * DAY)
  list.sign(ca.key, SIGNED).to_pem
end
File.write('crl-twice-dated.pem', same_number.join + puppet[:root_crl].to_pem)

# Another CA with the same names; a certificate of that one, and its own files.
foreign = authority('foreign')
save('foreign', issue(foreign, 'web1.test', other), other)
File.write('foreign-ca.pem', foreign[:ca].cert.to_pem + foreign[:root].to_pem)
File.write('foreign-crl.pem', foreign[:ca].crl.to_pem + foreign[:root_crl].to_pem)

# What no Puppet CA makes.
save('expired', bent(puppet, rsa) { |cert| cert.not_after = Time.now - 3600 }, rsa)
save('future', bent(puppet, rsa) { |cert| cert.not_before = Time.now + 3600 }, rsa)
# One that nobody's CA has signed, and that is not valid yet.
alone = bent(foreign, other) { |cert| cert.not_before = Time.now + 3600 }
alone.issuer = alone.subject
save('alone', alone.sign(other, SIGNED), other)
# One of another CA with the same name.
save('foreign-future', bent(foreign, other) { |cert| cert.not_before = Time.now + 3600 }, other)
save('nameless', bent(puppet, rsa) { |cert| cert.subject = OpenSSL::X509::Name.parse('/O=none') }, rsa)
save('twonames', bent(puppet, rsa) { |cert| cert.subject = OpenSSL::X509::Name.parse('/CN=web1.test/CN=web2.test') }, rsa)
save('upper', bent(puppet, rsa) { |cert| cert.subject = OpenSSL::X509::Name.parse('/CN=WEB1.test') }, rsa)
slashed = OpenSSL::X509::Name.new([['CN', 'a/b']])
save('slashed', bent(puppet, rsa) { |cert| cert.subject = slashed }, rsa)
# A node's certificate that acts as a CA: a third one, signed by web1's key.
below = OpenSSL::X509::Certificate.new(issue(puppet, 'web2.test', other).to_der)
below.issuer = web1.subject
save('below', below.sign(rsa, SIGNED), other)
serving = bent(puppet, rsa) do |cert|
  factory = OpenSSL::X509::ExtensionFactory.new
  cert.extensions = cert.extensions.map { |e| e.oid == 'extendedKeyUsage' ? factory.create_extension('extendedKeyUsage', 'serverAuth', true) : e }
end
save('serving', serving, rsa)
save('p521', issue(puppet, 'p521.test', big = OpenSSL::PKey::EC.generate('secp521r1')), big)
edwards = OpenSSL::PKey.generate_key('ED25519')
save('ed25519', bent(puppet, rsa) { |cert| cert.public_key = edwards }, edwards)

# A crowd. Its certificates differ by what the CA writes into each: all are signed, and none is asked for.
if COUNT.positive?
  key = OpenSSL::PKey::RSA.new(BITS)
  cert = issue(puppet, 'crowd.test', key)
  File.write('crowd.key', key.to_pem)
  pems = (1..COUNT).map do |n|
    cert.serial = cert.serial + 1
    cert.subject = OpenSSL::X509::Name.new([['CN', format('m%04d.test', n)]])
    cert.sign(ca.key, SIGNED).to_pem
  end
  File.write('crowd.pem', pems.join)
end
