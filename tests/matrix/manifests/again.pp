# A file that is changed asks for one more run. That one finds the file as it should be, and asks for nothing.
include common::again

file { '/tmp/foo':
  content => "It is here.\n",
  notify  => Exec['again'],
}

# A line for every run there has been.
exec { 'proof':
  command => '/bin/date >> /tmp/puppet.again',
}
