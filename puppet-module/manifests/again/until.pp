# @summary
#   Asks for another Puppet run as long as a check fails
#
# Puppet runs the check when it evaluates this resource: order it after the resources that the check depends on. Nothing has to notify
# it, so a failed resource elsewhere cannot prevent the request. Once the check succeeds, no more runs are requested. If it never
# succeeds, the cap ends the chain, and the Exec fails with a message that says so.
#
# A check fails if it cannot be executed, is killed by a signal or exceeds its timeout. Under noop Puppet runs the check too, but requests
# nothing.
#
# @param check
#   Command that exits with 0 once there is nothing to wait for. An array runs without a shell; its first element is an absolute path. A
#   string runs in /bin/sh. If it is Sensitive, the report shows neither the check nor the output of the request.
#
# @param delta
#   Minimum delay before the next run, as in `common::again::delta`.
#
# @param timeout
#   Timeout of the check in seconds.
#
# @param max_runs
#   Maximum number of reruns in the window, instead of the setting of `common::again`.
#
# @param on_cap
#   Action at the cap, instead of the setting of `common::again`. Use `wait` for a condition that may take long.
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

  # With a prefix, because a delta may have the same title.
  $timer = "until ${common::again::timer('common::again::until', $title)}"
  $plain = $check ? {
    Sensitive => $check.unwrap,
    default   => $check,
  }
  $argv = $plain ? {
    String  => ['/bin/sh', '-c', $plain],
    default => $plain,
  }
  # Otherwise Puppet would treat a missing check (127) as an error, and a check that exceeds the timeout of the Exec as a success.
  $unless = ['/bin/sh', '-c', 'timeout -k 5 "$0" "$@" || exit 1', String($timeout)] + $argv
  $checks = $check ? {
    Sensitive => Sensitive([$unless]),
    default   => [$unless],
  }
  # If nothing can be requested, the Exec does not run. Otherwise every report would show a change.
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
