# Runs again until something is there that Puppet does not make: here a file, on a real node the answer of a peer.
#
#   touch /var/tmp/again-example/joined     ends the waiting
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}

file { $dir:
  ensure => directory,
}

common::again::until { 'peers joined':
  check   => ['/usr/bin/test', '-f', "${dir}/joined"],
  delta   => 2,
  require => File[$dir],
}

if find_file("${dir}/joined") {
  file { "${dir}/config":
    content => "peers = yes\n",
  }
}
