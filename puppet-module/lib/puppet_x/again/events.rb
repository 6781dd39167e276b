# frozen_string_literal: true

require 'json'
require_relative 'events/spool'
require_relative 'events/publisher'

module PuppetX; end
module PuppetX::Again; end

# Publishes the events of a run as they happen. The prepended modules stay for the life of the process, and ignore all other runs.
module PuppetX::Again::Events
  # Hook after each resource. Before `process_events` the status of the resource has its changes and failures; after it, its refresh too.
  module Watching
    def process_events(resource)
      run = PuppetX::Again::Events.run
      return super unless run&.has?(transaction, resource)

      status = transaction.resource_status(resource)
      seen = status.events.size
      run.evaluated(resource, status) if seen.positive?
      result = super
      run.refreshed(resource, status, seen) if status.events.size > seen
      result
    end
  end

  # Hook at the end of a run.
  module Ending
    def finalize_report
      result = super
      PuppetX::Again::Events.end(self)
      result
    end
  end

  # A run, from its first resource to its report.
  class Run
    attr_reader :report

    # @param wanted
    #   Parameters of the type again_events, by name.
    def initialize(catalog, report, wanted)
      @catalog = catalog
      @report = report
      @helper = wanted[:helper]
      @publisher = Publisher.new(wanted)
      @spool = Spool.new(wanted[:spool], wanted[:socket]) { |lost| begun(lost) }
      @whit = Puppet::Type.type(:whit)
      @number = 0
      @dropped = 0
      @failed = {}
    end

    # Whether the resource belongs to this run and is not a `whit`, a placeholder that Puppet adds for a container.
    def has?(transaction, resource)
      @report.equal?(transaction.report) && !resource.is_a?(@whit)
    end

    # Publishes the events of a resource after its evaluation.
    def evaluated(resource, status)
      status.events.each { |event| tell(resource, status, event) }
    end

    # Publishes the events that a refresh has added; `seen` is the number of events before it.
    def refreshed(resource, status, seen)
      status.events.drop(seen).each { |event| tell(resource, status, event, refresh: true) }
    end

    # Publishes the missed failures and the last line, and closes the spool file.
    def end
      missed
      @number += 1
      ended = { n: @number, at: now, status: @report.status, transaction: @report.transaction_uuid.to_s }
      ended.update(@publisher.classes(@catalog.classes.map(&:to_s).uniq), metrics: @publisher.metrics(@report), dropped: @dropped + @spool.unwritten)
      @spool.add(@publisher.json(ended: ended), last: true)
    rescue StandardError => e
      @spool.warn(e.message)
    ensure
      close
    end

    def close
      @spool.close
    end

    private

    def tell(resource, status, event, refresh: false)
      change = event ? @publisher.change(resource, event, refresh) : 'failed'
      @failed[status.resource] = true if change == 'failed'
      return unless change && @publisher.wanted?(resource, status, event, change)

      @number += 1
      @first ||= begin
        @publisher.look_for_titles(@catalog)
        { at: now, **origins }
      end
      @dropped += 1 unless @spool.add(@publisher.line(@number, resource, status, event, change))
    rescue StandardError => e
      @dropped += 1
      @spool.warn(e.message)
    end

    # Publishes failures of resources that were never evaluated, or that failed after their evaluation.
    def missed
      @report.resource_statuses.each_value do |status|
        next unless status.failed && !@failed[status.resource]

        resource = @catalog.resource(status.resource)
        tell(resource, status, status.events.reverse.find { |event| event.status == 'failure' }) if resource
      end
    end

    def begun(lost)
      first = @first || { at: now, origins: [] }
      environment = (@catalog.environment || Puppet[:environment]).to_s
      @publisher.json(begun: { **first, environment: environment, puppet: Puppet.version, lost: lost })
    end

    # Origins of this run according to `again`. If they cannot be determined, `unknown` is set: an empty array means that there are none.
    def origins
      return { origins: [] } unless File.exist?(@helper)

      words = ['timeout', '-k', '1', '1', @helper, 'status', '--json', '--this-run']
      said = Puppet::Util::Execution.execute(words, failonfail: false, combine: false, override_locale: false)
      found = JSON.parse(said).fetch('this_run')&.fetch('origin', nil)&.fetch('origins')
      raise "#{found} are no origins" unless found.nil? || found.is_a?(Array)

      { origins: found || [] }
    rescue StandardError => e
      Puppet.warning("no rule of another node reacts to this run: '#{@helper} status' does not say who asked for it: #{e.message[0, 200]}")
      { origins: [], unknown: true }
    end

    def now
      Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)
    end
  end

  class << self
    # Run whose events are published; nil if there is none.
    attr_reader :run

    # Starts to publish the events of a run. Called from the checks before the run, when its report listens to the log already: that is how
    # to find it, because a resource has no reference to its transaction.
    def watch(catalog, wanted)
      report = Puppet::Util::Log.destinations.keys.reverse.find { |destination| destination.is_a?(Puppet::Transaction::Report) }
      return if report.nil? || (@run && @run.report.equal?(report))

      @run&.close
      @run = Run.new(catalog, report, wanted)
      Puppet::Transaction::EventManager.prepend(Watching)
      Puppet::Transaction::Report.prepend(Ending)
    end

    # Ends the watched run; ignores the report of any other run.
    def end(report)
      return unless @run && @run.report.equal?(report)

      run = @run
      @run = nil
      run.end
    end
  end
end
