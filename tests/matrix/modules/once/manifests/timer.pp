# Runs a command once, when more than `delta` seconds have passed since the timer was first seen. The moment is on disk, written once, and
# so is asked for once, too: a run that comes early finds that the time is not up, and nothing asks again.
define once::timer (
  $command = '/bin/true',
  $delta = 3600,
  $again = true,
) {
  $vardir = '/var/lib/once'
  $timer = "once-timer-${name}"

  file { $vardir:
    ensure => directory,
  }

  exec { "/bin/date > ${vardir}/start-${name}":
    creates => "${vardir}/start-${name}",
    alias   => "once-start-${name}",
    require => File[$vardir],
    notify  => [Exec[$timer], Common::Again::Delta[$timer]],
  }

  if $again {
    include common::again

    common::again::delta { $timer:
      delta => $delta,
    }
  }

  $passed = "\$(( `/bin/date +%s` - `/bin/date --file=${vardir}/start-${name} +%s` ))"

  exec { $timer:
    command => "${command} && /usr/bin/touch ${vardir}/end-${name}",
    creates => "${vardir}/end-${name}",
    onlyif  => "/usr/bin/test ${passed} -gt ${delta}",
    require => Exec["once-start-${name}"],
  }
}
