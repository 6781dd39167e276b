# frozen_string_literal: true

require 'json'
require_relative '../puppet_x/again/output'

# What the classes of a fleet have to know of this very run: its certname, where Puppet keeps its certificates, and who holds the locks for
# which this node is a candidate. Nothing in here may fail a run or hold it up.
#
# No constants: Puppet loads this file anew in every run of a daemon.
module AgainFleetFact
  module_function

  def value
    files = { 'cert' => :hostcert, 'key' => :hostprivkey, 'ca' => :localcacert, 'crl' => :hostcrl }
    fact = { 'certname' => Puppet[:certname].to_s, 'paths' => files.transform_values { |setting| Puppet[setting].to_s } }
    missing = fact['paths'].reject { |_name, path| File.exist?(path) }.keys
    fact['missing'] = missing unless missing.empty?
    locks = lock_files
    # Where there are none no program is called.
    locks.empty? ? fact : fact.merge('locks' => held(locks))
  end

  # The texts of the files of this node's locks, by the names of the locks.
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

  # What the service says. What it does not know is not made up: who held a lock a while ago is nobody's concern.
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

  # Puppet turns nil into an empty string, which is true in a manifest.
  def compact(hash)
    hash.compact
  end

  # The define notes in each file where the program is.
  def program(text)
    places = [ENV['AGAIN_FLEET_BIN'] || text[%r{^# binary: (/\S+)$}, 1], '/usr/local/bin/again-fleet', '/usr/bin/again-fleet']
    found = places.compact.find { |path| File.file?(path) && File.executable?(path) }
    found || raise('there is no again-fleet on this node')
  end

  # What the program prints; what is no JSON says why something is not known, in its own words.
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
