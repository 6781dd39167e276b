# A finite state machine. The state is a file; every run makes one step and asks for the next run, until there is no step left.
#
#   none > unpack > init > start > settle > ready      five steps, five runs
#
# There are two seconds between `settle` and `ready`, and no wait between the others.
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}

$steps = {
  'none'   => 'unpack',
  'unpack' => 'init',
  'init'   => 'start',
  'start'  => 'settle',
  'settle' => 'ready',
}

$file = find_file("${dir}/state")
$state = $file ? {
  undef   => 'none',
  default => strip(file($file)),
}
$next = $steps[$state]

file { $dir:
  ensure => directory,
}

common::again::delta { 'settle':
  delta => 2,
}

if $next {
  $then = $next ? {
    'ready'  => undef,
    'settle' => Common::Again::Delta['settle'],
    default  => Exec['again'],
  }

  # On a real node: the resources of this step, and the state only after them.
  file { "${dir}/state":
    content => "${next}\n",
    notify  => $then,
  }
}
