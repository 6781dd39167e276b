# The plain case: a change is a reason for one more run. The second run changes nothing and asks for nothing.
#
#   puppet apply --modulepath MODULES init.pp
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}

file { $dir:
  ensure => directory,
}

file { "${dir}/seed":
  content => "planted\n",
  notify  => Exec['again'],
}

# Known at compile time only in the run after.
if find_file("${dir}/seed") {
  file { "${dir}/plant":
    content => "grown in run ${facts.dig('again', 'run')}\n",
    replace => false,
  }
}
