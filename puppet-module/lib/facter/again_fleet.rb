# frozen_string_literal: true

require 'json'
require_relative '../puppet_x/again/output'

# The fact `again_fleet`, for the classes of a fleet: the certname of this very run, the paths of Puppet's certificates, and the holders of
# the locks for which this node is a candidate. This code must neither fail a run nor delay it.
#
# No constants: the Puppet daemon loads this file again in every run.
module AgainFleetFact
  module_function

  def value
    files = { 'cert' => :hostcert, 'key' => :hostprivkey, 'ca' => :localcacert, 'crl' => :hostcrl }
    fact = { 'certname' => Puppet[:certname].to_s, 'paths' => files.transform_values { |setting| Puppet[setting].to_s } }
    missing = fact['paths'].reject { |_name, path| File.exist?(path) }.keys
    fact['missing'] = missing unless missing.empty?
    locks = lock_files
    # Without locks no program is called.
    locks.empty? ? fact : fact.merge('locks' => held(locks))
  end

  # Contents of the lock files of this node, by the names of the locks.
  def lock_files
    texts = Dir.glob("#{directory}/*.toml").map { |path| read(path) }
    texts.to_h { |text| [text[%r{^name\s*=\s*["']([\w.-]+)["']}, 1], text] }.reject { |name, _text| name.nil? }
  end

  def directory
    settings = read(ENV['AGAIN_FLEET_CONFIG'] || '/etc/again-fleet.toml')
    ENV['AGAIN_FLEET_LOCKS_DIR'] || settings[%r{^locks_dir\s*=\s*["'](/[^"']+)["']}, 1] || '/etc/again-fleet-locks.d'
  end

  def read(path)
    File.open(path, 'r:UTF-8') { |file| file.read(65_536).to_s.scrub }
  rescue SystemCallError
    ''
  end

  # State of each lock according to the service. A lock that the service does not know has no holder: an earlier one may be out of date.
  def held(locks)
    said = JSON.parse(output(program(locks.values.first), 'locks', '--own', '--json'))
    known = (said.is_a?(Hash) && said['schema'] == 1) ? said['locks'] : nil
    raise 'the service of this node does not tell of locks' unless known.is_a?(Hash)

    locks.to_h { |name, _text| [name, known[name] ? compact(known[name]) : unknown('the service of this node does not know this lock yet')] }
  rescue StandardError => e
    Facter.debug("again_fleet: no locks: #{e}")
    locks.transform_values { unknown(e.message.empty? ? e.class.to_s : e.message) }
  end

  def unknown(why)
    { 'is_mine' => false, 'why' => why.lines.first.strip[0, 200] }
  end

  # The hash without nil values: Puppet turns nil into an empty string, which is true in a manifest.
  def compact(hash)
    hash.compact
  end

  # Path of again-fleet from a comment that the define writes to each lock file.
  def program(text)
    places = [ENV['AGAIN_FLEET_BIN'] || text[%r{^# binary: (/\S+)$}, 1], '/usr/local/bin/again-fleet', '/usr/bin/again-fleet']
    found = places.compact.find { |path| File.file?(path) && File.executable?(path) }
    found || raise('there is no again-fleet on this node')
  end

  # JSON that the program prints.
  #
  # @raise [RuntimeError] if the output is not JSON; it is the error message of the program then
  def output(*command)
    text = PuppetX::Again::Output.of(command, most: 1024 * 1024, errors: true).scrub
    text.start_with?('{') ? text : raise(text)
  end
end

Facter.add(:again_fleet) do
  setcode do
    next unless defined?(Puppet) && Puppet.respond_to?(:settings)

    AgainFleetFact.value
  rescue StandardError => e
    Facter.debug("again_fleet: #{e}")
    nil
  end
end
