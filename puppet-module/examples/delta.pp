# Two looks at something that takes its time: one after five seconds, one after ten. Both count from the same run and stay apart.
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}

common::again::delta { 'soon':
  delta => 5,
}

common::again::delta { 'later':
  delta           => '10',
  start_timer_now => true,
}

file { $dir:
  ensure => directory,
}

file { "${dir}/request":
  content => "sent\n",
  notify  => [Common::Again::Delta['soon'], Exec['again-delta-later']],
}
