tower::level { '4': }

exec { 'proof':
  command => '/bin/date >> /tmp/puppet.again',
}
