# From a bare machine to a finished one in two runs. The first writes down what the machine is, as a fact; the second builds what a machine
# of that role needs, which the first could not know.
#
#   puppet apply bootstrap.pp                        the second run comes by itself, once the first has ended
#   again converge -- puppet apply bootstrap.pp      both in the foreground, for kickstart, images and containers
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}
$role = $facts['again_example_role']

file { ['/etc/facter', '/etc/facter/facts.d', $dir]:
  ensure => directory,
}

# On a real node an inventory, or the person who installs it, tells the role.
file { '/etc/facter/facts.d/again_example_role.txt':
  content => "again_example_role=web\n",
  notify  => Exec['again'],
}

if $role {
  # On a real node: include "role::${role}"
  file { "${dir}/role":
    content => "${role}, built in run ${facts.dig('again', 'run')}\n",
    replace => false,
  }
}
