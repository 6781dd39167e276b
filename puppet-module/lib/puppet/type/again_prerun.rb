# frozen_string_literal: true

# @summary
#   Sets a command that every run of the agent calls before it applies its catalog
#
# @api private
Puppet::Type.newtype(:again_prerun) do
  @doc = <<~DOC
    @summary Makes every run of the agent wait for a slot, with `prerun_command` in puppet.conf

    The class `common::again::fleet` declares it for its parameter `slots`. It writes the setting to the section `agent` of the puppet.conf
    of this run; the agent reads it before its next run. If puppet.conf has a `prerun_command` from another source, the resource leaves it
    alone and fails with a message that says what to do. `absent` removes the setting only if this type wrote it.
  DOC

  ensurable

  newparam(:name, namevar: true) do
    desc 'Any name.'
  end

  newparam(:program) do
    desc 'Path of the program `again-fleet`.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a path without quotes" unless %r{\A/[[:alnum:]_.,:@+~/-]+\z}.match?(value.to_s) }
  end

  newparam(:config) do
    desc 'Path of the settings of `again-fleet`; by default /etc/again-fleet.toml.'

    validate { |value| raise ArgumentError, "#{value.inspect} is not a path without quotes" unless %r{\A/[[:alnum:]_.,:@+~/-]+\z}.match?(value.to_s) }
  end

  newparam(:required) do
    desc 'Whether a run fails if the program is missing. By default it starts without a slot.'

    newvalues(:true, :false)
    defaultto :false
  end

  validate { raise ArgumentError, 'no program' if self[:ensure] != :absent && !self[:program] }

  # Beginning of every line that this type writes, by which it recognizes its own. A no-op in a shell.
  def self.mark
    ': again-fleet; '
  end

  # The wanted value of `prerun_command`. Unless `required`, a node without the program still runs Puppet, which installs it again. The
  # program asks for a slot for its parent process, which has to be Puppet: hence `exec`.
  def command
    words = ['exec', self[:program], 'slot', *(self[:config] && "--config=#{self[:config]}")].join(' ')
    words = "test ! -x #{self[:program]} || #{words}" unless self[:required] == :true
    "#{self.class.mark}#{words}"
  end
end
