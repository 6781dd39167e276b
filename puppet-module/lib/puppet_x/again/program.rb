# frozen_string_literal: true

require 'puppet'

module PuppetX; end
module PuppetX::Again; end

# The program again-fleet, asked for a bounded time. Loaded in puppetserver too, and there once for each environment: no constants.
module PuppetX::Again::Program
  # Where it is, or nil.
  def self.path
    Puppet::Util.which('again-fleet') || Puppet::Util.which('/usr/local/bin/again-fleet')
  end

  # Runs it, and returns what it said, and how it failed or nil.
  #
  # @raise [Puppet::Error] if there is none
  def self.run(words, seconds:, combine:)
    program = path
    raise Puppet::Error, 'there is no program again-fleet on this machine: include common::again::fleet' unless program

    # Puppet's own execution knows no timeout, and in puppetserver there is no other way to start a program.
    words = ['timeout', '-k', '2', seconds.to_s, program, *words]
    output = Puppet::Util::Execution.execute(words, failonfail: false, combine: combine, override_locale: false)
    how = { 0 => nil, 124 => "took longer than #{seconds} s", 137 => 'was killed' }.fetch(output.exitstatus || 137) { |status| "ended with #{status}" }
    # Puppet takes it for what the locale says.
    [String.new(output.to_s, encoding: Encoding::UTF_8).scrub, how]
  end
end
