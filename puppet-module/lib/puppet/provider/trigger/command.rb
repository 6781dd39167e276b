# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:command) do
  desc 'Runs any program: `mco puppet runonce`, Choria, Bolt. Gives no guarantees: a trigger that the program loses is lost.'

  # Runs the command, and logs what it prints.
  #
  # @raise [Puppet::Error] if its exit status is not 0
  def fire
    hosts = resource[:hosts]
    return resource.notice('nobody to start Puppet on: hosts is empty') if hosts.empty?

    failed = commands(hosts).filter_map { |words| run(words) }
    raise Puppet::Error, failed.join('; ') if failed.any?
  end

  private

  # One command for each host, or one for all of them.
  def commands(hosts)
    all = resource[:command].map { |word| word.gsub('%{hosts}', hosts.join(',')) }
    return [all] unless all.any? { |word| word.include?('%{host}') }

    hosts.map { |host| all.map { |word| word.gsub('%{host}', host) } }
  end

  # Runs one command. Returns the error message, or nil on success.
  def run(words)
    secret = resource.parameter(:command).sensitive
    output = Puppet::Util::Execution.execute(words, failonfail: false, combine: true, override_locale: false, sensitive: secret)
    lines = output.to_s.lines(chomp: true).reject(&:empty?)
    lines = ['[output redacted]'] if secret && lines.any?
    lines.each { |line| resource.notice(line) }
    "#{secret ? '[command redacted]' : words.join(' ')} ended with #{output.exitstatus}" unless output.exitstatus.zero?
  end
end
