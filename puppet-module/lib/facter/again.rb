# frozen_string_literal: true

require 'etc'
require 'json'
require_relative '../puppet_x/again/output'

# The fact `again`: the state of `again` on this node, for manifests and for the Execs of this module. Facts are evaluated inside the run,
# so Puppet's paths are those of this very run, and `again status` finds the run among its own parent processes. This code must neither
# fail a run nor delay it.
#
# No constants: the Puppet daemon loads this file again in every run.
module AgainFact
  module_function

  def value
    fact = reported
    # sd_booted(3) tests for the same directory.
    compact(fact.merge('systemd' => File.directory?('/run/systemd/system'), 'paths' => paths, 'home' => home))
  end

  # Home directory under which the class installs files when Puppet does not run as root. From the user database, which `again` uses too;
  # HOME only for a user who is not in it.
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

  # Paths by the names of Puppet's settings. Both locks and the pid file are the agent's: `puppet apply` would give its own pid file
  # (user.pid) and ignore section [agent] of puppet.conf. The summary is this run's own.
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
    # `values` and `interpolate` are not part of Puppet's public interface.
    Puppet[name]
  end

  # The fact on a node without `again`: run 1, nothing pending.
  def nothing
    { 'run' => 1, 'pending' => {}, 'cap' => {}, 'disabled' => false }
  end

  # The fact when the state cannot be determined: run 0, with the reason. "Run 1" would be a guess, and a manifest that compares the number
  # would fail without one.
  def unknown(why)
    nothing.merge('run' => 0, 'unknown' => why.to_s.lines.first.to_s.strip[0, 200])
  end

  # The fact from the output of the program `again`, which may be of any version, or another program of that name.
  def reported
    program = binary
    program ? from_status(JSON.parse(status(program))) : nothing
  rescue StandardError => e
    Facter.debug("again: no status: #{e}")
    unknown(e.message)
  end

  # JSON with this run's target only. A version of `again` without the option `--this-run` prints nothing; then JSON with all targets.
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

  # A pending timer without the times that count down: they would change the fact in every run although the state is the same.
  def pending(timer)
    compact(timer.slice('state', 'run', 'chain', 'delta_seconds', 'requested_at', 'due_at'))
  end

  # The hash without nil values: Puppet turns nil into an empty string, which is true in a manifest.
  def compact(hash)
    hash.compact
  end

  def binary
    places = [configured, '/usr/local/bin/again', '/usr/bin/again', '/usr/local/sbin/again', '/opt/again/bin/again']
    places.insert(1, "#{home}/.local/bin/again") if home
    places = [ENV['AGAIN_BIN']] if ENV['AGAIN_BIN']
    places.compact.find { |path| File.file?(path) && File.executable?(path) }
  end

  # Path of `again` from a comment that the class writes to the configuration file.
  def configured
    File.open(config, 'r:UTF-8') { |file| file.read(4096).to_s.scrub[%r{^# binary: (/\S+)$}, 1] }
  rescue SystemCallError
    nil
  end

  def config
    own = "#{home}/.config/again.toml"
    ENV['AGAIN_CONFIG'] || ((home && File.file?(own)) ? own : '/etc/again.toml')
  end

  # `again` reads the variable and the file in /etc without an option.
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
