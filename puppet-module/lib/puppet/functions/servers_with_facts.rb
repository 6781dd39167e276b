# frozen_string_literal: true

# @summary
#   The facts of all servers with certain facts
#
# They come from where those of `servers_with_role` come from. Of what is asked for, PuppetDB selects by `=` with a value; the rest is
# compared by the function, so that at least one such expression keeps its answer small.
Puppet::Functions.create_function(:servers_with_facts) do
  # @param expressions
  #   Expressions of which all have to hold: `fact=value`, `fact!=value`, `fact<value`, `fact>value`, `<=`, `>=`, and `fact=/regex/` or
  #   `fact!=/regex/`. A fact may be a dotted name. Where the value is a number, `<` and `>` compare numbers, else text. Of a server that
  #   lacks the fact, none holds.
  #
  # @return [Array[Hash[String, Any]]]
  #   A hash of facts for each server, with its `certname`; always in the order of the certnames.
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
