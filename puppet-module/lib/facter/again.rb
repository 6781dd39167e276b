# frozen_string_literal: true

require 'etc'
require 'json'
require_relative '../puppet_x/again/output'

# What a manifest, and the Execs of this module, can know of `again`. Facts are evaluated inside the run, so Puppet's paths are those of
# this very run, and `again status` finds it among its own parents. Nothing in here may fail a run or hold it up.
#
# No constants: Puppet loads this file anew in every run of a daemon.
module AgainFact
  module_function

  def value
    fact = reported
    # The directory is sd_booted(3)'s test.
    compact(fact.merge('systemd' => File.directory?('/run/systemd/system'), 'paths' => paths, 'home' => home))
  end

  # Where the class puts the files of a user's own Puppet: by the user database, as the helper goes by it, and not by HOME.
  def home
    return if root?

    begin
      Etc.getpwuid(Process.euid).dir
    rescue ArgumentError
      ENV['HOME']
    end
  end

  def root?
    Process.euid.zero?
  end

  # Both locks and the pid file are the agent's: `puppet apply` would name its own pid file (user.pid) and leave out what puppet.conf says
  # under [agent]. The summary is this run's own.
  def paths
    return {} unless defined?(Puppet) && Puppet.respond_to?(:settings)

    %w[agent_catalog_run_lockfile agent_disabled_lockfile lastrunfile pidfile].each_with_object({}) do |name, known|
      path = (name == 'lastrunfile') ? Puppet[:lastrunfile] : as_agent(name.to_sym)
      known[name] = path.to_s unless path.to_s.empty?
    rescue StandardError => e
      Facter.debug("again: no #{name}: #{e}")
    end
  end

  def as_agent(name)
    Puppet.settings.values(nil, :agent).interpolate(name)
  rescue NoMethodError
    # Not of Puppet's public interface.
    Puppet[name]
  end

  # What is so without a helper: this is run 1, and nothing is pending.
  def nothing
    { 'run' => 1, 'pending' => {}, 'cap' => {}, 'disabled' => false }
  end

  # What cannot be told: run 0, with the reason. "Run 1" would be a guess, and no number at all would fail a manifest that compares it.
  def unknown(why)
    nothing.merge('run' => 0, 'unknown' => why.to_s.lines.first.to_s.strip[0, 200])
  end

  # Whatever calls itself `again` on this node, and whatever it says.
  def reported
    program = binary
    program ? from_status(JSON.parse(status(program))) : nothing
  rescue StandardError => e
    Facter.debug("again: no status: #{e}")
    unknown(e.message)
  end

  # Of this run's target alone, however many there are. A helper of before that option says nothing.
  def status(program)
    text = output(program, 'status', '--json', '--this-run', *config_option)
    text.empty? ? output(program, 'status', '--json', *config_option) : text
  end

  def from_status(status)
    return unknown('the helper does not tell its status') unless status.is_a?(Hash) && status['version']

    fact = { 'version' => status['version'].to_s }
    return unknown("the helper's status has schema #{status['schema']}").merge(fact) unless status['schema'] == 1

    fact = nothing.merge(fact)
    fact['disabled'] = compact(status['disabled']) if status['disabled'].is_a?(Hash)
    this_run = status['this_run']
    return fact unless this_run.is_a?(Hash)

    fact.merge!(compact(this_run.slice('run', 'chain', 'timer')))
    unreadable = Array(status['unreadable']).first
    return fact.merge('unknown' => unreadable.to_s) if unreadable

    target = Array(status['targets']).find { |candidate| candidate['id'] == this_run['target'] }
    return fact unless target

    fact['cap'] = compact(target['cap'] || {})
    fact['pending'] = Array(target['timers']).to_h { |timer| [timer['name'], pending(timer)] }
    fact
  end

  # No times that count down: they would make a new fact of the same state in every run.
  def pending(timer)
    compact(timer.slice('state', 'run', 'chain', 'delta_seconds', 'requested_at', 'due_at'))
  end

  # Puppet turns nil into an empty string, which is true in a manifest.
  def compact(hash)
    hash.compact
  end

  def binary
    places = [configured, '/usr/local/bin/again', '/usr/bin/again', '/usr/local/sbin/again', '/opt/again/bin/again']
    places.insert(1, "#{home}/.local/bin/again") if home
    places = [ENV['AGAIN_BIN']] if ENV['AGAIN_BIN']
    places.compact.find { |path| File.file?(path) && File.executable?(path) }
  end

  # The class notes in the configuration file where it has put the helper.
  def configured
    File.open(config, 'r:UTF-8') { |file| file.read(4096).to_s.scrub[%r{^# binary: (/\S+)$}, 1] }
  rescue SystemCallError
    nil
  end

  def config
    own = "#{home}/.config/again.toml"
    ENV['AGAIN_CONFIG'] || ((home && File.file?(own)) ? own : '/etc/again.toml')
  end

  # The helper knows the variable and the file in /etc by itself.
  def config_option
    (ENV['AGAIN_CONFIG'] || config == '/etc/again.toml') ? [] : ["--config=#{config}"]
  end

  def output(*command)
    PuppetX::Again::Output.of(command, most: 16 * 1024 * 1024, errors: false)
  end
end

Facter.add(:again) do
  confine kernel: 'Linux'
  setcode { AgainFact.value }
end
