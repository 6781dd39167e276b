# @summary
#   Asks for another Puppet run as long as a check fails
#
# The check is made when Puppet comes to this resource: order it after what it depends on. Nothing has to notify it, so that a failed
# resource elsewhere cannot keep it from asking. Once the check succeeds nothing happens any more. If it never does, the cap ends the
# chain, and the Exec fails with the line that says so.
#
# A check that cannot be executed, dies of a signal or takes too long has failed. Puppet makes checks under noop too, but asks for nothing
# then.
#
# @param check
#   The command that succeeds once there is nothing to wait for. An array is run as it is, its first element an absolute path. A string
#   is given to /bin/sh. If it is Sensitive, the report shows neither the check nor what the request says.
#
# @param delta
#   As with `common::again::delta`.
#
# @param timeout
#   How many seconds the check may take.
#
# @param max_runs
#   At most this many reruns in the window, instead of the setting of `common::again`.
#
# @param on_cap
#   What to do at the cap, instead of the setting of `common::again`. Use `wait` for a condition that may take long.
#
# @example Until the peers have joined
#   common::again::until { 'peers joined':
#     check => ['/usr/bin/test', '-f', '/var/lib/cluster/joined'],
#     delta => 30,
#   }
#
# @example Until something listens, however long it takes
#   common::again::until { 'database is up':
#     check  => 'ss -Hltn sport = :5432 | grep -q .',
#     delta  => '2m',
#     on_cap => 'wait',
#   }
#
# @api public
define common::again::until (
  Variant[Common::Again::Check, Sensitive[Common::Again::Check]] $check,
  Common::Again::Duration $delta = 30,
  Integer[1, 3600] $timeout = 60,
  Optional[Integer[0, 4294967295]] $max_runs = undef,
  Optional[Common::Again::OnCap] $on_cap = undef,
) {
  include common::again

  # Not the bare title, which a delta may have too.
  $timer = "until ${common::again::timer('common::again::until', $title)}"
  $plain = $check ? {
    Sensitive => $check.unwrap,
    default   => $check,
  }
  $argv = $plain ? {
    String  => ['/bin/sh', '-c', $plain],
    default => $plain,
  }
  # Puppet would take a check that is missing (127) for an error and one that exceeds the Exec's timeout for a success.
  $unless = ['/bin/sh', '-c', 'timeout -k 5 "$0" "$@" || exit 1', String($timeout)] + $argv
  $checks = $check ? {
    Sensitive => Sensitive([$unless]),
    default   => [$unless],
  }
  # With nothing to ask for, nothing is checked, or every report would show a change.
  $when = $common::again::active ? {
    true    => { 'unless' => $checks },
    default => { 'refreshonly' => true },
  }

  $cap = { '--max-runs' => $max_runs, '--on-cap' => $on_cap }
    .filter |$_option, $value| { $value =~ NotUndef }
    .map |$option, $value| { "${option}=${value}" }

  $command = common::again::request("--name=${timer}", "--delta=${delta}", "--resource=Common::Again::Until[${title}]", *$cap)

  exec { "again-until-${title}":
    * => $common::again::exec + { 'command' => $command, 'timeout' => $timeout + 60 } + $when,
  }
}
