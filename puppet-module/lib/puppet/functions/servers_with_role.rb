# frozen_string_literal: true

# @summary
#   The facts of all servers of a role
#
# The role of a server is its fact `role`. The facts come from PuppetDB if the compiler has it, otherwise from the inventory of again-fleet,
# which has the facts that `common::again::fleet::published_facts` names. While the backend does not answer, the function uses the last
# inventory, of any age, and warns. Flat names of facts, such as `hostname` and `ipaddress`, are available on Puppet 8 too.
#
# An empty array means that no server has the role. If the function cannot determine the servers, the catalog fails:
#
# - neither PuppetDB nor the inventory is available, or
# - a configured PuppetDB fails, or does not answer all queries of a compilation within 20 seconds.
#
# With the key `common::again::servers::fallback` in Hiera the catalog compiles nevertheless, with a warning: `inventory` uses the inventory
# instead of PuppetDB, `empty` returns no server. On a machine without PuppetDB that was never set up for again-fleet (no
# /etc/again-fleet.toml) the function returns no server, with a warning.
Puppet::Functions.create_function(:servers_with_role) do
  # @param role
  #   The role.
  #
  # @param environment
  #   The environment of the servers; by default any.
  #
  # @return [Array[Hash[String, Any]]]
  #   A hash of facts for each server, with its `certname`, in the order of the certnames.
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
