# frozen_string_literal: true

# @summary
#   The facts of all servers with certain facts
#
# The source of the facts is that of `servers_with_role`. PuppetDB evaluates only expressions with `=` and a value; the function evaluates
# the others. Use at least one expression of the first kind to keep the answer of PuppetDB small.
Puppet::Functions.create_function(:servers_with_facts) do
  # @param expressions
  #   Expressions that all have to match: `fact=value`, `fact!=value`, `fact<value`, `fact>value`, `<=`, `>=`, and `fact=/regex/` or
  #   `fact!=/regex/`. A fact may be a dotted name. If the value is a number, `<` and `>` compare numbers, otherwise text. An expression
  #   never matches a server that lacks the fact.
  #
  # @return [Array[Hash[String, Any]]]
  #   A hash of facts for each server, with its `certname`, in the order of the certnames.
  #
  # @example Servers that are new, or have been up for long
  #   $servers = servers_with_facts('hostname=/^new$|^old$/', 'uptime_days>10')
  dispatch :servers do
    required_repeated_param 'String[1]', :expressions
    return_type 'Array[Hash]'
  end

  def servers(*expressions)
    call_function('common::again::servers', expressions)
  end
end
