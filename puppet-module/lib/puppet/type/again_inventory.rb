# frozen_string_literal: true

# Has the report of a run tell the fleet how the run ended, if the run has told what the node is.
module Puppet::AgainFleetEnd
  class << self
    # The command that tells it, once it is due.
    attr_accessor :command
  end

  def finalize_report
    result = super
    command = Puppet::AgainFleetEnd.command
    Puppet::AgainFleetEnd.command = nil
    Puppet::AgainFleetEnd.tell(command, status) if command && !noop
    result
  end

  # Whether it was told; what went wrong is a warning, for no run fails by it.
  def self.tell(command, status)
    output = Puppet::Util::Execution.execute([*command, "--end=#{status}"], failonfail: false, combine: true, override_locale: false)
    Puppet.warning("the fleet is not told how this run ended: #{output.to_s.strip}") unless output.exitstatus.zero?
  rescue StandardError => e
    Puppet.warning("the fleet is not told how this run ended: #{e.message}")
  end
end

# @summary
#   Tells the fleet what this node is
Puppet::Type.newtype(:again_inventory) do
  @doc = <<~DOC
    @summary Tells the fleet what this node is

    The class `common::again::fleet` declares it. It tells the facts of its parameter, the classes and the environment of the catalog and the
    version of Puppet, for other nodes to be shown and to select this one by: when the catalog is known, before anything is applied and any
    trigger fires; in the run that installs the program, when its service has been started. The end of the run tells how it ended.

    It never changes anything, tells nothing under noop, and no run fails by it.
  DOC

  newparam(:name, namevar: true) do
    desc 'A name for people.'
  end

  newparam(:facts) do
    desc 'The facts that are told: a hash of names and values, each of them a string, a number or a boolean. Everybody in the fleet may read them.'

    defaultto({})

    validate do |value|
      scalar = [String, Numeric, TrueClass, FalseClass]
      good = value.is_a?(Hash) && value.all? { |name, fact| name.is_a?(String) && scalar.any? { |type| fact.is_a?(type) } }
      raise ArgumentError, 'facts have to be a hash of names and strings, numbers or booleans' unless good
    end
  end

  newparam(:program) do
    desc 'The path of the program again-fleet.'

    defaultto '/usr/local/bin/again-fleet'

    validate { |value| raise ArgumentError, "#{value.inspect} is not an absolute path" unless value.is_a?(String) && value.start_with?('/') }
  end

  newparam(:config) do
    desc 'The path of its settings, if they are not in /etc/again-fleet.toml.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not an absolute path" unless value.is_a?(String) && value.start_with?('/') }
  end

  # Methods of Puppet that it calls during a run, and that this module overrides: without one of them nothing would be told, in silence.
  def self.missing_hooks
    require 'puppet/transaction/event_manager'
    require 'puppet/transaction/report'
    hooks = { Puppet::Type => :pre_run_check, Puppet::Transaction => :perform_pre_run_checks,
              Puppet::Transaction::EventManager => :process_events, Puppet::Transaction::Report => :finalize_report, }
    hooks.reject { |owner, name| owner.method_defined?(name) || owner.private_method_defined?(name) }.map { |owner, name| "#{owner}##{name}" }
  end

  # Called when a node turns its catalog into resources, before any of them is applied.
  validate do
    missing = self.class.missing_hooks
    err("this module does not know Puppet #{Puppet.version}: it has no #{missing.join(', ')}; the fleet does not see all that runs do") if missing.any?
  end

  # Called before anything of the catalog is applied.
  def pre_run_check
    # A catalog may be applied more than once.
    @told = nil
    tell_early
  end

  # Called before a trigger is fired, too: whoever it starts is to find this node.
  def tell_early
    wrong = tell
    debug("not told yet: #{wrong}") if wrong
  end

  # Called when it is this resource's turn: whoever could not tell before tells now.
  def retrieve
    wrong = tell
    warning("the fleet is not told what this node is: #{wrong}") if wrong
    super
  end

  private

  # Tells, unless that is done, or is not to be done; what went wrong, if anything did.
  def tell
    return if @told || noop? || !catalog&.host_config?
    return "there is no program #{self[:program]}" unless File.executable?(self[:program])

    command = [self[:program], *("--config=#{self[:config]}" if self[:config]), 'tell']
    output = with_facts { |path| Puppet::Util::Execution.execute(command, failonfail: false, combine: true, override_locale: false, stdinfile: path) }
    return output.to_s.strip unless output.exitstatus.zero?

    @told = true
    Puppet::AgainFleetEnd.command = command
    Puppet::Transaction::Report.prepend(Puppet::AgainFleetEnd)
    nil
  rescue StandardError => e
    e.message
  end

  def with_facts
    said = { facts: self[:facts], classes: catalog.classes.map(&:to_s), environment: (catalog.environment || Puppet[:environment]).to_s, puppet: Puppet.version }
    Tempfile.create('again-inventory') do |file|
      file.write(JSON.generate(said))
      file.flush
      yield file.path
    end
  end
end
