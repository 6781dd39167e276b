# Nodes that wait for one another: each exports what it has to say of itself, collects what the others have exported, and runs again until
# all are there. Then, and not before, it forms the cluster. Which node comes first does not matter.
#
# Exported resources need PuppetDB, or another backend for `storeconfigs`.
include common::again

$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}
$size = 3

# What the others make of a node.
define again_example_peer( # lint:ignore:autoloader_layout
  String[1] $address,
) {
  $dir = $facts['again_example_dir'] ? {
    undef   => '/var/tmp/again-example',
    default => $facts['again_example_dir'],
  }

  file { "${dir}/peers/${title}":
    content => "${title} ${address}\n",
  }
}

file { [$dir, "${dir}/peers"]:
  ensure => directory,
}

@@again_example_peer { $facts['clientcert']:
  address => "${facts['clientcert']}:7000",
  tag     => 'again-example',
}

Again_example_peer <<| tag == 'again-example' |>>

# The names of files are the nodes that were collected.
$all_are_there = "test \"$(ls '${dir}/peers' | wc -l)\" -ge ${size}"

# After what was collected. On a real node the delta would be a minute or two, and nodes may take their time: no cap ends the waiting.
common::again::until { 'all peers':
  check   => $all_are_there,
  delta   => 2,
  on_cap  => 'wait',
  require => File["${dir}/peers"],
}

Again_example_peer <| |> -> Common::Again::Until['all peers']

exec { 'form the cluster':
  command  => "cat '${dir}/peers/'* >'${dir}/cluster'",
  onlyif   => $all_are_there,
  creates  => "${dir}/cluster",
  provider => 'shell',
  require  => Common::Again::Until['all peers'],
}
