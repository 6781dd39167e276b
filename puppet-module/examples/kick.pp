# The same by the titles of notifies, as with puppet-kicker: after a run that has changed something, the report processor runs Puppet on all
# nodes whose fact `role` is `haproxy`. A run that changes nothing but its notifies kicks nobody, and a circle ends at the hop limit.
#
#   puppet.conf of the server:        reports = store,kick     in [server]
#   where nodes run `puppet apply`:   reports = kick           in [user]
#
# The server is a node of the fleet, with `common::again::fleet::firing_group: puppet`; the load balancers let it speak for others, with
# `common::again::fleet::accept_for: { 'puppet.example.com': ['web*.example.com'] }`.
$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}

file { $dir:
  ensure => directory,
}

case $facts['role'] {
  'haproxy': {
    $nodes = servers_with_role('node')
    $lines = $nodes.map |$node| { "server ${node['hostname']} ${node['ipaddress']}:8080 check\n" }

    file { "${dir}/haproxy.cfg":
      content => join(["listen web\n", *$lines]),
    }
  }
  'node': {
    file { "${dir}/shop.conf":
      content => "listen = 8080\n",
    }

    # Also: kick -> class:profile::lb, kick -> host:lb01.example.com
    notify { 'kick -> haproxy': }
  }
  default: {
    warning("no role '${facts['role']}'")
  }
}
