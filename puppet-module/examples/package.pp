# A package brings the fact that the next catalog needs: openssh-server the fact `ssh`, a driver a new entry under `networking`, a database
# its version. Installing it is a reason for one more run, and only then is there anything to configure.
#
# For Debian, as root. So that it runs anywhere, it makes a package of its own, `again-example-store`; `apt purge` takes that away again.
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}
$tree = "${dir}/store"

file { [$dir, $tree, "${tree}/DEBIAN", "${tree}/etc", "${tree}/etc/facter", "${tree}/etc/facter/facts.d"]:
  ensure => directory,
  mode   => '0755',
}

file { "${tree}/DEBIAN/control":
  content => @(CONTROL),
    Package: again-example-store
    Version: 1
    Architecture: all
    Maintainer: Nobody <nobody@localhost>
    Description: brings a fact
    | CONTROL
}

file { "${tree}/etc/facter/facts.d/again_example_store.txt":
  content => "again_example_store=raid1\n",
}

-> exec { 'build the package':
  command => ['/usr/bin/dpkg-deb', '--root-owner-group', '--build', $tree, "${dir}/store.deb"],
  creates => "${dir}/store.deb",
  require => File["${tree}/DEBIAN/control"],
}

# From here on as on a real node, where nothing but the package's name would be needed.
-> package { 'again-example-store':
  ensure   => installed,
  provider => 'dpkg',
  source   => "${dir}/store.deb",
  notify   => Exec['again'],
}

if $facts['again_example_store'] {
  file { "${dir}/store.conf":
    content => "store = ${facts['again_example_store']}\n",
    require => Package['again-example-store'],
  }
}
