# frozen_string_literal: true

# @summary
#   The facts of one server of a role
#
# The source of the facts is that of `servers_with_role`.
Puppet::Functions.create_function(:server_with_role) do
  # @param role
  #   The role.
  #
  # @param fallback
  #   Hash that is returned if no server has the role.
  #
  # @return [Hash[String, Any]]
  #   The facts of the first server in the order of the certnames, with its `certname`; or the fallback.
  #
  # @example The database, or this very machine
  #   $database = server_with_role('database', { 'hostname' => 'localhost', 'ipaddress' => '127.0.0.1' })
  dispatch :server do
    param 'String[1]', :role
    param 'Hash', :fallback
    return_type 'Hash'
  end

  def server(role, fallback)
    call_function('common::again::servers', [['role', '==', role]]).first || fallback
  end
end
