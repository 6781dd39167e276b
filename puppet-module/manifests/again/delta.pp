# @summary
#   Asks for another Puppet run after a while: `notify => Common::Again::Delta['title']`
#
# The define can be notified, and so can its `Exec["again-delta-title"]`. Deltas of different titles stay apart: each gets its run. A
# request replaces a pending one of the same title. So `again`, and words that begin with `again-` or `until `, cannot be titles: other
# timers of this module have these names.
#
# @param delta
#   How long after the end of this run the next one is due at the earliest: seconds as a number or as a string of digits, or a string with
#   a unit, such as `2m`. A random part is added to it, see `jitter` of `common::again`.
#
# @param start_timer_now
#   Whether the time counts from the moment of the request and not from the end of the run.
#
# @example Look again in two minutes
#   common::again::delta { 'cluster':
#     delta => 120,
#   }
#
#   file { '/var/tmp/again-nodes':
#     ensure => file,
#     notify => Common::Again::Delta['cluster'],
#   }
#
# @api public
define common::again::delta (
  Common::Again::Duration $delta = 0,
  Boolean $start_timer_now = false,
) {
  include common::again

  $timer = common::again::timer('common::again::delta', $title)
  $base = $start_timer_now ? {
    true    => ['--start-timer-now'],
    default => [],
  }

  $command = common::again::request("--name=${timer}", "--delta=${delta}", "--resource=Common::Again::Delta[${title}]", *$base)

  exec { "again-delta-${title}":
    * => $common::again::exec + { 'command' => $command, 'refreshonly' => true },
  }
}
