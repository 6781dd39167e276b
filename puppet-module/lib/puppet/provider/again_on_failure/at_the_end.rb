# frozen_string_literal: true

require 'timeout'

Puppet::Type.type(:again_on_failure).provide(:at_the_end) do
  desc 'Looks at what has failed once every resource has been evaluated.'

  # How long the command may take, in seconds, as with the Execs of this module.
  def self.timeout
    60
  end

  # Both are called in every run, also where the resource itself is skipped: the first before it is evaluated, with all resources of this
  # type, the second after the last resource of the run, while its report is still open.
  def self.prefetch(resources)
    @resources = resources.values
  end

  def self.post_resource_eval
    resources = @resources || []
    @resources = []
    resources.each { |resource| resource.provider.finish }
  end

  # Asks for a run if there is a reason. A failure in here must not keep the run from its end.
  def finish
    report = current_report
    return unless report && wanted?(report) && reason?(report)

    ask(report.resource_statuses[resource.to_s])
  rescue StandardError => e
    resource.err("again: error: cannot ask for a run after this one's failures: #{e}")
  end

  private

  # The report that listens to the log of the transaction in which this resource was evaluated. Nothing leads from a resource to its
  # transaction.
  def current_report
    Puppet::Util::Log.destinations.keys.reverse.find do |destination|
      destination.is_a?(Puppet::Transaction::Report) && destination.resource_statuses.key?(resource.to_s)
    end
  end

  # Skipped by tags or by schedule, as an Exec would have been; but not by dependencies, for these are a failure to look after.
  def wanted?(report)
    status = report.resource_statuses[resource.to_s]
    skipped = status.skipped? && !status.dependency_failed?
    !(skipped || resource.noop? || Puppet::Application.stop_requested?)
  end

  def reason?(report)
    report.resource_statuses.any? { |name, status| (status.failed? || status.failed_to_restart?) && !request?(name) }
  end

  # A request that was refused, at the cap for one, has said why. To ask once more would end the same way.
  def request?(name)
    failed = resource.catalog.resource(name)
    failed.is_a?(Puppet::Type.type(:exec)) && Array(failed[:command]).flatten.first == resource[:command].first
  end

  # As an Exec does it: standard input from nowhere, the locale as it is.
  def ask(status)
    output = run
    lines = output.to_s.lines.map(&:chomp).reject(&:empty?)
    if output.exitstatus.zero?
      lines.each { |line| resource.notice(line) }
    else
      lines << "#{resource[:command].first} ended with #{output.exitstatus}" if lines.empty?
      lines.each { |line| resource.err(line) }
      status.fail_with_event(lines.first)
    end
  end

  def run
    program = resource[:command].first
    raise "there is no #{program}" unless File.file?(program) && File.executable?(program)

    Timeout.timeout(self.class.timeout) do
      Puppet::Util::Execution.execute(resource[:command], failonfail: false, combine: true, override_locale: false)
    end
  end
end
