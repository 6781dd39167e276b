once::timer { 'timer':
  command => '/bin/date > /var/lib/once/done',
  delta   => 120,
}

exec { 'proof':
  command => '/bin/date >> /tmp/puppet.again',
}
