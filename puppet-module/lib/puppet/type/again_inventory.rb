# frozen_string_literal: true

# Publishes the end of a run when its report is finalized, if the run has published this node's inventory.
module Puppet::AgainFleetEnd
  class << self
    # Command that publishes the end of the run; nil until the inventory has been published.
    attr_accessor :command
  end

  def finalize_report
    result = super
    command = Puppet::AgainFleetEnd.command
    Puppet::AgainFleetEnd.command = nil
    Puppet::AgainFleetEnd.tell(command, status) if command && !noop
    result
  end

  # Publishes the end of the run. An error is logged as a warning, because it must not fail the run.
  def self.tell(command, status)
    output = Puppet::Util::Execution.execute([*command, "--end=#{status}"], failonfail: false, combine: true, override_locale: false)
    Puppet.warning("the fleet is not told how this run ended: #{output.to_s.strip}") unless output.exitstatus.zero?
  rescue StandardError => e
    Puppet.warning("the fleet is not told how this run ended: #{e.message}")
  end
end

# @summary
#   Publishes the inventory of this node to the fleet
Puppet::Type.newtype(:again_inventory) do
  @doc = <<~DOC
    @summary Publishes the inventory of this node to the fleet

    The class `common::again::fleet` declares it. It publishes the facts of its parameter, the classes and the environment of the catalog
    and the version of Puppet; other nodes show them and select this node with them. It publishes before the catalog is applied and before
    any trigger is sent; in the run that installs the program, after the service has been started. At the end of the run it publishes how
    the run ended.

    The resource never changes anything, publishes nothing under noop and never fails a run.
  DOC

  newparam(:name, namevar: true) do
    desc 'Any name.'
  end

  newparam(:facts) do
    desc 'The facts to publish: a hash of names and values, each a string, a number or a boolean. Every node of the fleet can read them.'

    defaultto({})

    validate do |value|
      scalar = [String, Numeric, TrueClass, FalseClass]
      good = value.is_a?(Hash) && value.all? { |name, fact| name.is_a?(String) && scalar.any? { |type| fact.is_a?(type) } }
      raise ArgumentError, 'facts have to be a hash of names and strings, numbers or booleans' unless good
    end
  end

  newparam(:program) do
    desc 'Path of the program `again-fleet`.'

    defaultto '/usr/local/bin/again-fleet'

    validate { |value| raise ArgumentError, "#{value.inspect} is not an absolute path" unless value.is_a?(String) && value.start_with?('/') }
  end

  newparam(:config) do
    desc 'Path of the settings of `again-fleet`; by default /etc/again-fleet.toml.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not an absolute path" unless value.is_a?(String) && value.start_with?('/') }
  end

  # Methods that this version of Puppet lacks, of those that it should call or that this module overrides. Without one of them something
  # would not be published, and without an error.
  def self.missing_hooks
    require 'puppet/transaction/event_manager'
    require 'puppet/transaction/report'
    hooks = { Puppet::Type => :pre_run_check, Puppet::Transaction => :perform_pre_run_checks,
              Puppet::Transaction::EventManager => :process_events, Puppet::Transaction::Report => :finalize_report, }
    hooks.reject { |owner, name| owner.method_defined?(name) || owner.private_method_defined?(name) }.map { |owner, name| "#{owner}##{name}" }
  end

  # Puppet calls this when it turns the catalog into resources, before it applies any of them.
  validate do
    missing = self.class.missing_hooks
    err("this module does not know Puppet #{Puppet.version}: it has no #{missing.join(', ')}; the fleet does not see all that runs do") if missing.any?
  end

  # Puppet calls this before it applies the catalog.
  def pre_run_check
    # A catalog may be applied more than once.
    @told = nil
    tell_early
  end

  # Publishes the inventory early. Also called before a trigger is sent, so that the nodes that it starts find this node.
  def tell_early
    wrong = tell
    debug("not told yet: #{wrong}") if wrong
  end

  # Puppet calls this when it evaluates the resource: publishes the inventory if that has failed so far.
  def retrieve
    wrong = tell
    warning("the fleet is not told what this node is: #{wrong}") if wrong
    super
  end

  private

  # Publishes the inventory, once per run and not under noop. Returns the error message, or nil.
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
