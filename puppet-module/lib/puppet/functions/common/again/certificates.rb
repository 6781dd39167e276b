# frozen_string_literal: true

require 'openssl'
require 'set'
require 'time'

# @summary
#   The certnames for which Puppet's CA has signed certificates, and whether one of a name's certificates is valid
#
# Reads the CA's own inventory and revocation list on the machine that compiles the catalog. The inventory also lists certificates that
# `puppetserver ca clean` has removed. A certificate is valid if it has neither expired nor been revoked.
#
# @api private
Puppet::Functions.create_function(:'common::again::certificates') do
  # @return [Optional[Hash[String[1], Boolean]]]
  #   Sorted certnames, each with whether one of its certificates is valid; undef on a machine without the CA.
  #
  # @example
  #   common::again::certificates()
  dispatch :certificates do
    return_type 'Optional[Hash[String[1], Boolean]]'
  end

  def certificates
    # `0x0005 2026-11-20T00:00:00UTC 2031-11-20T00:00:00UTC /CN=web1.example.com`
    line = %r{\A0x(?<serial>\h+) \S+ (?<ends>\S+) \S*/CN=(?<name>[a-z0-9._-]+)\s*\z}
    text = inventory
    return if text.nil?

    serials = revoked
    now = Time.now
    entries = text.each_line.map { |entry| line.match(entry) }.compact.group_by { |entry| entry[:name] }
    entries.sort.to_h.transform_values do |all|
      all.any? { |entry| !serials.include?(entry[:serial].hex) && Time.parse(entry[:ends]) >= now }
    end
  end

  # Text of the CA's inventory; nil on a machine without the CA.
  def inventory
    File.read(Puppet[:cert_inventory])
  rescue Errno::ENOENT
    nil
  end

  # Serial numbers on the revocation list of the signing CA. The lists of the CAs above it are in the same file.
  def revoked
    issuer = OpenSSL::X509::Certificate.new(File.read(Puppet[:cacert])).subject
    blocks = File.read(Puppet[:cacrl]).scan(%r{-----BEGIN X509 CRL-----.*?-----END X509 CRL-----}m)
    lists = blocks.map { |block| OpenSSL::X509::CRL.new(block) }.select { |list| list.issuer == issuer }
    lists.flat_map { |list| list.revoked.map { |entry| entry.serial.to_i } }.to_set
  end
end
