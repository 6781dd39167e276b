# frozen_string_literal: true

# @summary
#   The facts of one server of a role
#
# They come from where those of `servers_with_role` come from.
Puppet::Functions.create_function(:server_with_role) do
  # @param role
  #   The role.
  #
  # @param fallback
  #   What is returned if there is no such server.
  #
  # @return [Hash[String, Any]]
  #   The facts of the first of the servers by certname, with its `certname`; or the fallback.
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
