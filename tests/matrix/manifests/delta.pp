# The same with two minutes in between.
include common::again

common::again::delta { 'delta-timer':
  delta => 120,
}

file { '/tmp/foo':
  content => "It is here.\n",
  notify  => Common::Again::Delta['delta-timer'],
}

exec { 'proof':
  command => '/bin/date >> /tmp/puppet.again',
}
