# frozen_string_literal: true

require_relative '../../puppet_x/again/servers'

# @summary
#   The facts of all servers of a role
#
# A server's role is its fact `role`. The facts come from PuppetDB where the compiler has it, else from the inventory of again-fleet, which
# has the facts that `common::again::fleet::published_facts` names. While the backend does not answer, the last inventory counts, whatever
# its age, with a warning. Where nobody can tell which servers there are, the catalog fails: an empty array means that there are none. It
# fails too where a configured PuppetDB fails, unless the key `common::again::servers::fallback` in Hiera is `inventory` or `empty`. On a
# machine without PuppetDB that was never set up for again-fleet (no /etc/again-fleet.toml) the array is empty, with a warning. Flat names of
# facts, such as `hostname` and `ipaddress`, are there on Puppet 8 too.
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
    wanted = PuppetX::Again::Servers::Comparison.new('role', '==', role)
    PuppetX::Again::Servers.new(closure_scope).find([wanted], environment)
  end
end
