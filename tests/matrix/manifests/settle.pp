class { 'settle':
  again => true,
}

exec { 'proof':
  command => '/bin/date >> /tmp/puppet.again',
}
