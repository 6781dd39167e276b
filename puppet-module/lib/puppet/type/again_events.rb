# frozen_string_literal: true

require 'puppet/parameter/boolean'
require_relative '../../puppet_x/again/events'

# @summary
#   Publishes the events of a run to the fleet while it runs
#
# @api private
Puppet::Type.newtype(:again_events) do
  @doc = <<~DOC
    @summary Publishes the events of a run to the fleet while it runs

    The class `common::again::fleet` declares it for its parameter `events`. From the first resource of the run on, each change, failure and
    refresh becomes a line in a spool file, which the service reads; the last line says how the run ended. `types`, `titles`, `tags` and
    `only` filter the events: an event is published if it matches all that are set. The last line is always written.

    The resource never changes anything, publishes nothing under noop and never fails a run. A run does not wait for the service or the
    backend. It calls the program `again` once, for at most two seconds, to find out who asked for the run.
  DOC

  newparam(:name, namevar: true) do
    desc 'Any name.'
  end

  {
    spool: ['/var/spool/again-fleet', 'Directory of the spool.'],
    socket: ['/run/again-fleet/events', 'Wakeup socket of the service: a datagram means that there are new lines.'],
    helper: ['/usr/local/bin/again', 'Path of the program `again`, which knows who asked for this run.'],
  }.each do |name, (default, text)|
    newparam(name) do
      desc text

      defaultto default

      validate { |value| raise ArgumentError, "#{value.inspect} is not an absolute path" unless value.is_a?(String) && value.start_with?('/') }
    end
  end

  {
    types: 'Publish only events of resources of these types, such as `Service` or `Package`.',
    titles: 'Publish only events of resources with one of these titles. `*` stands for any characters.',
    tags: 'Publish only events of resources with one of these tags.',
  }.each do |name, text|
    newparam(name) do
      desc text

      validate { |value| raise ArgumentError, "#{name} have to be strings" unless Array(value).all? { |one| one.is_a?(String) && !one.empty? } }
      munge { |value| Array(value) }
    end
  end

  newparam(:only) do
    desc 'Publish only events that undo a change made outside of Puppet (`corrective`), or only failures (`failed`).'

    newvalues(:corrective, :failed)
  end

  newparam(:values, boolean: true, parent: Puppet::Parameter::Boolean) do
    desc <<~DOC
      Whether to publish the old value, the new value and the message of an event too. Every node of the fleet can read them. Values that
      are Sensitive or redacted are never published, nor those of resources with `show_diff => false`.
    DOC

    defaultto false
  end

  # Puppet calls this before it applies the catalog. A Puppet server loads types too, but applies nothing.
  def pre_run_check
    return if noop? || !catalog&.host_config? || !%i[user agent].include?(Puppet.run_mode.name)

    PuppetX::Again::Events.watch(catalog, %i[spool socket helper types titles tags only values].to_h { |name| [name, self[name]] })
  rescue StandardError => e
    warning("the events of this run are not told: #{e.message}")
  end
end
