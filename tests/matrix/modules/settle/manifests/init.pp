# In the manner of a clustering module: hosts turn up one after the other, and only when the same ones have been seen three times
# in a row is the volume made. Each run observes once and asks for the next, in time for other hosts to be seen.
class settle (
  $again = true,
) {
  if $again {
    include settle::again
  }

  $vardir = '/var/lib/settle'
  $seen = $facts['settle']
  $last = $seen[-3, 3]
  $settled = $last =~ Array[String, 3, 3] and unique($last).length == 1

  $notify = $again ? {
    false   => undef,
    default => Common::Again::Delta['settle-exec-again'],
  }

  file { $vardir:
    ensure => directory,
  }

  if $settled {
    exec { 'settle-create':
      command   => "/usr/bin/touch ${vardir}/volume",
      creates   => "${vardir}/volume",
      logoutput => on_failure,
      notify    => $notify,
      require   => File[$vardir],
    }
  } else {
    # One host in the first run, two in the second, three from then on.
    $hosts = min($seen.length + 1, 3)

    exec { 'settle-observe':
      command   => "/bin/echo '${hosts} hosts' >> ${vardir}/seen",
      logoutput => on_failure,
      notify    => $notify,
      require   => File[$vardir],
    }
  }
}
