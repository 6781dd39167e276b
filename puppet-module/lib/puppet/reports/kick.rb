# frozen_string_literal: true

require 'digest'
require 'puppet/reports'

Puppet::Reports.register_report(:kick) do
  desc <<~DESC
    Runs Puppet on other nodes when a run has ended in which a notify says so by its title: `kick -> haproxy` for all nodes whose fact `role` is
    `haproxy`, `kick -> class:profile::lb` for those with a class, both in the environment of the run; `kick -> host:lb01.example.com` for one
    node. Only if the run has changed something besides such notifies and triggers. With `reports = …,kick` in the section of the server, or of
    the user for `puppet apply`. It asks the program again-fleet of this machine: on a server on behalf of the node, which the targets have to
    accept (`common::again::fleet::accept_for`), and as a user whom the service lets in (`firing_group`).
  DESC

  # Sends the triggers. An error must neither fail nor delay the report: it is logged.
  def process
    wanted = kicks
    return if wanted.empty? || noop || !has_changed?

    # For all triggers together: the agent waits until its report has been processed.
    deadline = now + 15
    wanted.first(16).each { |wish| kick(wish, deadline) }
    complain("what #{host} asks for after the 16th", "there are #{wanted.size}") if wanted.size > 16
  rescue StandardError, NotImplementedError => e
    complain("the kicks of #{host}", e.message)
  end

  private

  # Selections from the titles of the notifies of this run, without duplicates: `haproxy` from `kick -> haproxy`.
  def kicks
    notifies = resource_statuses.values.select { |status| status.resource_type == 'Notify' && status.changed && !status.failed }
    notifies.map { |status| status.title.to_s[%r{\Akick\s*->\s*(.*?)\s*\z}, 1] }.compact.uniq.sort
  end

  # Whether the run has changed a resource other than notifies and triggers.
  def has_changed?
    resource_statuses.values.any? { |status| status.changed && !%w[Notify Trigger].include?(status.resource_type) }
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def kick(wish, deadline)
    selection = selection(wish)
    return complain("'kick -> #{wish}' of #{host}", 'it names no role, class: or host:') unless selection

    # On the server each node has its own trigger name, because a trigger has the origins of one run only. The job id of the report
    # identifies the cause of that run.
    job = ["--job-id=#{job_id}"] unless Puppet.run_mode.name == :user
    words = ['trigger', "--name=#{name_of(wish)}", *selection, "--for=#{host}", *job]
    left = (deadline - now).ceil
    return complain("'kick -> #{wish}' of #{host}", 'those before it took too long') unless left.positive?

    output, how = run(words, left)
    lines = output.lines.map(&:strip).reject(&:empty?)
    return complain("'kick -> #{wish}' of #{host}", lines.last || "'again-fleet trigger' #{how}") if how

    lines.each { |line| Puppet.notice("kick -> #{wish}: #{line}") }
  rescue StandardError, NotImplementedError => e
    complain("'kick -> #{wish}' of #{host}", e.message)
  end

  # Output of again-fleet, and the error or nil.
  def run(words, seconds)
    program = Puppet::Util.which('again-fleet') || Puppet::Util.which('/usr/local/bin/again-fleet')
    raise Puppet::Error, 'there is no program again-fleet on this machine: include common::again::fleet' unless program

    # Puppet's own execution has no timeout, and puppetserver offers no other way to start a program.
    words = ['timeout', '-k', '2', seconds.to_s, program, *words]
    output = Puppet::Util::Execution.execute(words, failonfail: false, combine: true, override_locale: false)
    how = { 0 => nil, 124 => "took longer than #{seconds} s", 137 => 'was killed' }.fetch(output.exitstatus || 137) { |status| "ended with #{status}" }
    # Puppet assumes the encoding of the locale.
    [String.new(output.to_s, encoding: Encoding::UTF_8).scrub, how]
  end

  # Options of `again-fleet trigger` that select the nodes; nil if the title is invalid.
  def selection(wish)
    here = ["--environment=#{environment}"] unless environment.to_s.empty?
    case wish
    when %r{\Ahost:([a-z0-9._-]+)\z}i then ["--to=#{Regexp.last_match(1).downcase}"]
    when %r{\Aclass:(?:::)?([a-z]\w*(?:::[a-z]\w*)*)\z}i then ["--class=#{Regexp.last_match(1).downcase}", *here]
    when %r{\A(host|class):} then nil
    # With another first character, `role=` and the text would read as another operator.
    when %r{\A[^=~/[:cntrl:]][^[:cntrl:]]*\z} then ["--where=role=#{wish}", *here]
    end
  end

  def name_of(wish)
    name = "kick -> #{wish} (#{host})"
    (name.bytesize <= 128) ? name : "kick #{Digest::SHA256.hexdigest(name)}"
  end

  def complain(what, why)
    Puppet.err("kick: #{what} is not passed on: #{why.to_s.gsub(%r{[[:cntrl:]]+}, ' ').strip}")
  end
end
