# frozen_string_literal: true

# @summary
#   The facts of all servers of a role
#
# A server's role is its fact `role`. The facts come from PuppetDB where the compiler has it, else from the inventory of again-fleet, which
# has the facts that `common::again::fleet::published_facts` names. While the backend does not answer, the last inventory counts, whatever
# its age, with a warning. If nobody can tell which servers there are, the catalog fails: an empty array means that there are none. It
# fails too if a configured PuppetDB fails, or does not answer all questions of a compilation within 20 seconds. The key
# `common::again::servers::fallback` in Hiera lets it compile all the same: `inventory` asks the inventory in the place of PuppetDB, `empty`
# finds no server; both with a warning. On a machine without PuppetDB that was never set up for again-fleet (no /etc/again-fleet.toml) no
# server is found, with a warning. Flat names of facts, such as `hostname` and `ipaddress`, are there on Puppet 8 too.
Puppet::Functions.create_function(:servers_with_role) do
  # @param role
  #   The role.
  #
  # @param environment
  #   The environment, if it is to be one.
  #
  # @return [Array[Hash[String, Any]]]
  #   A hash of facts for each server, with its `certname`; always in the order of the certnames.
  #
  # @example The back ends of a load balancer
  #   $nodes = servers_with_role('frontend', 'production')
  dispatch :servers do
    param 'String[1]', :role
    optional_param 'String[1]', :environment
    return_type 'Array[Hash]'
  end

  def servers(role, environment = nil)
    call_function('common::again::servers', [['role', '==', role]], environment)
  end
end
