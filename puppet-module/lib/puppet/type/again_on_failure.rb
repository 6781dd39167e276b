# frozen_string_literal: true

# @summary
#   Asks for another Puppet run at the end of one in which resources have failed
#
# @api private
Puppet::Type.newtype(:again_on_failure) do
  @doc = <<~DOC
    @summary Asks for another Puppet run at the end of one in which resources have failed: `on_failure` of `common::again`

    The resource has nothing to evaluate: it never changes or fails during the run, and depends on no other resource. After the last
    resource of the run its provider runs the command if a resource has failed.
  DOC

  newparam(:name, namevar: true) do
    desc 'Any name.'
  end

  newparam(:command) do
    desc 'The command and its arguments, run without a shell.'

    validate do |value|
      words = Array(value)
      raise ArgumentError, 'the command has to be an array of strings' unless words.any? && words.all?(String)
      raise ArgumentError, 'the command has to be an absolute path' unless words.first.start_with?('/')
    end

    munge { |value| Array(value) }
  end

  validate { raise ArgumentError, 'no command' unless self[:command] }
end
