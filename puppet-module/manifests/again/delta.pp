# @summary
#   Asks for another Puppet run after a delay: `notify => Common::Again::Delta['title']`
#
# Notify the define or its `Exec["again-delta-title"]`. Each title has its own timer and its own run. A request replaces a pending one of
# the same title. The titles `again`, `again-…` and `until …` are reserved for other timers of this module.
#
# @param delta
#   Minimum time between the end of this run and the next one: seconds as a number or as a string of digits, or a string with a unit, such
#   as `2m`. A random part is added to it: see `jitter` of `common::again`.
#
# @param start_timer_now
#   Whether the time counts from the request instead of from the end of the run.
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
