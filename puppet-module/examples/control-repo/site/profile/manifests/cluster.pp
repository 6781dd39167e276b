# @summary
#   Asks for one more run when it has changed something
class profile::cluster {
  include common::again

  file { '/var/tmp/again-first':
    content => "planted\n",
    notify  => Exec['again'],
  }
}
