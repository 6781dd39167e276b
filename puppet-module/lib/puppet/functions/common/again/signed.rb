# frozen_string_literal: true

require 'openssl'
require 'time'

# @summary
#   The certnames of all certificates that Puppet's CA has signed, without those that have expired or are revoked
#
# Reads the CA's own inventory and revocation list, where the catalog is compiled.
#
# @api private
Puppet::Functions.create_function(:'common::again::signed') do
  # @return [Array[String[1]]]
  #   The certnames, sorted.
  #
  # @example
  #   common::again::signed()
  dispatch :signed do
    return_type 'Array[String[1]]'
  end

  def signed
    # `0x0005 2026-11-20T00:00:00UTC 2031-11-20T00:00:00UTC /CN=web1.example.com`
    line = %r{\A0x(?<serial>\h+) \S+ (?<ends>\S+) \S*/CN=(?<name>[a-z0-9._-]+)\s*\z}
    lines = text(:cert_inventory).each_line.map { |text| line.match(text) }.compact
    gone = revoked
    now = Time.now
    lines.reject { |one| gone.include?(one[:serial].hex) || Time.parse(one[:ends]) < now }.map { |one| one[:name] }.uniq.sort
  end

  # The serials on the list of the CA that signs; those above it have lists of their own in the same file.
  def revoked
    issuer = OpenSSL::X509::Certificate.new(text(:cacert)).subject
    blocks = text(:cacrl).scan(%r{-----BEGIN X509 CRL-----.*?-----END X509 CRL-----}m)
    lists = blocks.map { |block| OpenSSL::X509::CRL.new(block) }.select { |list| list.issuer == issuer }
    lists.flat_map { |list| list.revoked.map { |entry| entry.serial.to_i } }
  end

  def text(setting)
    File.read(Puppet[setting])
  rescue SystemCallError => e
    raise Puppet::Error, "there is no CA where this catalog is compiled (#{e.message}): set common::again::engine::nodes, for instance from PuppetDB"
  end
end
