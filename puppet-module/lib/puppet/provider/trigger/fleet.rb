# frozen_string_literal: true

# Base of the providers that send triggers over a backend with the program again-fleet, which passes them to the service of the node.
Puppet::Type.type(:trigger).provide(:fleet) do
  desc 'Base of the providers for the backends. It cannot be selected.'

  confine true: false

  # Sends the triggers with `after_run`. Puppet calls this after the last resource, while the report is still open.
  def self.post_resource_eval
    later = @later || []
    @later = []
    later.each(&:fire_at_the_end)
  end

  # Keeps the trigger for the end of the run.
  def self.leave(provider)
    @later = [*@later, provider].uniq
  end

  # Sends the trigger after all other resources of this run have been evaluated.
  def fire_later
    self.class.leave(self)
    resource.notice('fires when this run has applied everything else')
  end

  # Sends the trigger. The refresh is over by then, so the error is added to the resource in the report.
  def fire_at_the_end
    fire unless Puppet::Application.stop_requested?
  rescue StandardError => e
    resource.err(e.message)
    report = Puppet::Util::Log.destinations.keys.reverse.find do |destination|
      destination.is_a?(Puppet::Transaction::Report) && destination.resource_statuses.key?(resource.to_s)
    end
    report&.resource_statuses&.fetch(resource.to_s)&.fail_with_event(e.message)
  end

  # Sends the trigger, and logs the result.
  #
  # @raise [Puppet::Error] if the trigger could neither be sent nor stored
  def fire
    nobody = Array(resource[:hosts]).empty? && selection.empty?
    return resource.notice('nobody to start Puppet on: hosts is empty') if nobody

    program = Puppet::Util.which('again-fleet') || Puppet::Util.which('/usr/local/bin/again-fleet')
    raise Puppet::Error, "there is no program again-fleet on this node: include common::again::fleet before #{resource.ref}" unless program

    # In the run that starts the service the inventory could not be published earlier.
    resource.catalog&.resources&.each { |other| other.tell_early if other.respond_to?(:tell_early) }

    output = Puppet::Util::Execution.execute([program, 'trigger', *options], failonfail: false, combine: true, override_locale: false)
    # Puppet assumes the encoding of the locale, which in a run from cron is often one without arrows.
    *lines, last = String.new(output.to_s, encoding: Encoding::UTF_8).scrub.lines.map(&:chomp).reject(&:empty?)
    lines.each { |line| resource.notice(line) }
    raise Puppet::Error, last || "#{program} ended with #{output.exitstatus}" unless output.exitstatus.zero?

    resource.notice(last) if last
  end

  # The options of `again-fleet trigger`, in a fixed order.
  def options
    hosts = Array(resource[:hosts]).map { |host| "--to=#{host}" }
    limits = %i[delta ttl parallel stop_after_failures].filter_map { |key| "--#{key.to_s.tr('_', '-')}=#{resource[key]}" unless resource[key].nil? }
    wait = ['--wait'] if resource.wait?
    ["--backend=#{self.class.name}", "--name=#{resource[:name]}", *hosts, *selection, *limits, *wait]
  end

  private

  # Options of `again-fleet trigger` that select nodes, without the hosts.
  def selection
    %i[where class environment].flat_map { |key| Array(resource[key]).map { |value| "--#{key}=#{value}" } }
  end
end
