# frozen_string_literal: true

require 'puppet/parameter/boolean'
require_relative '../../puppet_x/again/events'

# @summary
#   Tells the fleet what a run does, when it does it
#
# @api private
Puppet::Type.newtype(:again_events) do
  @doc = <<~DOC
    @summary Tells the fleet what a run does, when it does it

    The class `common::again::fleet` declares it for its parameter `events`. From the first resource of the run on, each change, failure and
    refresh is a line in a spool file, from where the service takes it; the last line tells how the run ended. `types`, `titles`, `tags` and
    `only` say which events are told: those that fit all that are set. The last line is always written.

    It never changes anything, tells nothing under noop, and no run fails by it. None waits for the service or the backend; the program again is
    asked once who asked for the run, and has two seconds.
  DOC

  newparam(:name, namevar: true) do
    desc 'A name for people.'
  end

  {
    spool: ['/var/spool/again-fleet', 'The directory of the spool.'],
    socket: ['/run/again-fleet/events', 'The socket by which the service is told that there is something new.'],
    helper: ['/usr/local/bin/again', 'The path of the program again, which knows who asked for this run.'],
  }.each do |name, (default, text)|
    newparam(name) do
      desc text

      defaultto default

      validate { |value| raise ArgumentError, "#{value.inspect} is not an absolute path" unless value.is_a?(String) && value.start_with?('/') }
    end
  end

  {
    types: 'Events of resources of these types: `Service`, `Package`.',
    titles: 'Events of resources with these titles. `*` stands for any characters.',
    tags: 'Events of resources with one of these tags.',
  }.each do |name, text|
    newparam(name) do
      desc text

      validate { |value| raise ArgumentError, "#{name} have to be strings" unless Array(value).all? { |one| one.is_a?(String) && !one.empty? } }
      munge { |value| Array(value) }
    end
  end

  newparam(:only) do
    desc 'Only events that undo what something else had changed (`corrective`), or only failures (`failed`).'

    newvalues(:corrective, :failed)
  end

  newparam(:values, boolean: true, parent: Puppet::Parameter::Boolean) do
    desc <<~DOC
      Whether the old value, the new one and the message of an event are told too. Everybody in the fleet may read them. What is Sensitive or
      redacted is never told, nor what has `show_diff => false`.
    DOC

    defaultto false
  end

  # Called before anything of the catalog is applied. A Puppet server loads types too, and applies nothing.
  def pre_run_check
    return if noop? || !catalog&.host_config? || !%i[user agent].include?(Puppet.run_mode.name)

    PuppetX::Again::Events.watch(catalog, %i[spool socket helper types titles tags only values].to_h { |name| [name, self[name]] })
  rescue StandardError => e
    warning("the events of this run are not told: #{e.message}")
  end
end
