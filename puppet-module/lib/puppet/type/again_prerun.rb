# frozen_string_literal: true

# @summary
#   Has every run of the agent call a command before it applies its catalog
#
# @api private
Puppet::Type.newtype(:again_prerun) do
  @doc = <<~DOC
    @summary Has every run of the agent wait for a slot, by `prerun_command` in puppet.conf

    The class `common::again::fleet` declares it for its parameter `slots`. The line goes into the section `agent` of the puppet.conf of this run,
    and the agent reads it before its next run. A `prerun_command` that somebody else has written stays as it is: this resource fails then,
    and says what to do. `absent` takes away what this type wrote, and nothing else.
  DOC

  ensurable

  newparam(:name, namevar: true) do
    desc 'A name for people.'
  end

  newparam(:program) do
    desc 'The path of the program again-fleet.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a path without quotes" unless %r{\A/[[:alnum:]_.,:@+~/-]+\z}.match?(value.to_s) }
  end

  newparam(:config) do
    desc 'The path of its settings, if they are not in /etc/again-fleet.toml.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a path without quotes" unless %r{\A/[[:alnum:]_.,:@+~/-]+\z}.match?(value.to_s) }
  end

  newparam(:required) do
    desc 'Whether no run may start where the program is missing. If not, it starts without a slot.'

    newvalues(:true, :false)
    defaultto :false
  end

  validate { raise ArgumentError, 'no program' if self[:ensure] != :absent && !self[:program] }

  # How a line of this type begins: a shell does nothing for that, and nobody else writes it.
  def self.mark
    ': again-fleet; '
  end

  # The line that is wanted. A node that has lost the program still has to run Puppet, which brings it back. The program asks for its parent,
  # which has to be Puppet: hence exec.
  def command
    words = ['exec', self[:program], 'slot', *(self[:config] && "--config=#{self[:config]}")].join(' ')
    words = "test ! -x #{self[:program]} || #{words}" unless self[:required] == :true
    "#{self.class.mark}#{words}"
  end
end
