# frozen_string_literal: true

require 'timeout'

Puppet::Type.type(:again_on_failure).provide(:at_the_end) do
  desc 'Checks for failed resources after the last resource of the run.'

  # Timeout of the command in seconds, as for the Execs of this module.
  def self.timeout
    60
  end

  # Puppet calls `prefetch` and `post_resource_eval` in every run, even if the resource itself is skipped: `prefetch` before evaluating it,
  # with all resources of this type; `post_resource_eval` after the last resource of the run, while its report is still open.
  def self.prefetch(resources)
    @resources = resources.values
  end

  def self.post_resource_eval
    resources = @resources || []
    @resources = []
    resources.each { |resource| resource.provider.finish }
  end

  # Asks for a run if resources have failed. An error in here must not keep the run from ending.
  def finish
    report = current_report
    return unless report && wanted?(report) && reason?(report)

    ask(report.resource_statuses[resource.to_s])
  rescue StandardError => e
    resource.err("again: error: cannot ask for a run after this one's failures: #{e}")
  end

  private

  # The report that listens to the log of the transaction in which this resource was evaluated. A resource has no reference to its
  # transaction.
  def current_report
    Puppet::Util::Log.destinations.keys.reverse.find do |destination|
      destination.is_a?(Puppet::Transaction::Report) && destination.resource_statuses.key?(resource.to_s)
    end
  end

  # False under noop, if Puppet is being stopped, and if tags or a schedule skip the resource, as they would skip an Exec. A resource that
  # is skipped because a dependency failed still asks.
  def wanted?(report)
    status = report.resource_statuses[resource.to_s]
    skipped = status.skipped? && !status.dependency_failed?
    !(skipped || resource.noop? || Puppet::Application.stop_requested?)
  end

  def reason?(report)
    report.resource_statuses.any? { |name, status| (status.failed? || status.failed_to_restart?) && !request?(name) }
  end

  # Whether the failed resource is itself a request of this module, such as one that the cap has refused. Its own output says why; another
  # request would fail too.
  def request?(name)
    failed = resource.catalog.resource(name)
    failed.is_a?(Puppet::Type.type(:exec)) && Array(failed[:command]).flatten.first == resource[:command].first
  end

  # Runs the command as an Exec does: with empty standard input and an unchanged locale.
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
