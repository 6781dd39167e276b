# frozen_string_literal: true

require 'json'

# @summary
#   Writes a value as TOML
#
# @api private
Puppet::Functions.create_function(:'common::again::toml') do
  # @param value
  #   The value.
  #
  # @return [String]
  #   The value as TOML.
  #
  # @example
  #   common::again::toml(['/opt/bin/run "puppet"', 'agent'])
  dispatch :toml do
    param 'Variant[String, Integer, Boolean, Array[String]]', :value
    return_type 'String[1]'
  end

  def toml(value)
    case value
    when Array then "[#{value.map { |element| toml(element) }.join(', ')}]"
    # TOML's basic strings are JSON strings in which DEL is escaped too.
    when String then JSON.generate(value.encode('UTF-8')).gsub("\u007f", '\u007f')
    else value.to_s
    end
  end
end
