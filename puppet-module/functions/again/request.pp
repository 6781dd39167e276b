# @summary
#   The command with which an Exec asks for a run
#
# Puppet's paths come from the fact, which was evaluated inside this very run, so the command needs neither a file of another run nor a
# second Puppet process. Without the fact the command has no paths, and `again` finds them itself. Paths that the class sets are in the
# configuration file.
#
# If no run can be requested on this node, the command only prints the reason, with any provider of Exec.
#
# @param options
#   Options of `again run`.
#
# @return [Variant[String[1], Array[String[1]]]]
#   The command and its arguments.
#
# @example
#   common::again::request('--name=cluster', '--delta=120')
#
# @api private
function common::again::request(String[1] *$options) >> Variant[String[1], Array[String[1]]] {
  if !$common::again::active {
    $reason = $common::again::supported ? {
      true    => 'removed from this node (common::again has ensure absent)',
      default => $common::again::unsupported_reason,
    }
    $facts['kernel'] ? {
      'windows' => "cmd.exe /c echo again: nothing to do: ${reason}",
      default   => ['/bin/sh', '-c', 'echo "again: nothing to do: $0"', $reason],
    }
  } else {
    $known = $common::again::fact['paths'] ? {
      Hash    => $common::again::fact['paths'],
      default => {},
    }
    $configured = $common::again::manage_config ? {
      true    => $common::again::settings,
      default => {},
    }
    $names = ['agent_catalog_run_lockfile', 'agent_disabled_lockfile', 'lastrunfile', 'pidfile']
    $paths = $names
      .filter |$name| { $known[$name] =~ Common::Again::Absolutepath and !($name in $configured) }
      .map |$name| { "--${regsubst($name, '_', '-', 'G')}=${known[$name]}" }

    [$common::again::binary_path, 'run'] + $common::again::config_option + $options + $paths
  }
}
