# A load balancer that is run as soon as there is a new web server. Each node has its role as the fact `role`, from an external fact or the
# cloud's user data. The balancer's configuration is written by a template over all servers of a role, from PuppetDB, or from the inventory
# of again-fleet, for which `common::again::fleet::published_facts` has `role`, `networking.hostname` and `networking.ip`.
#
# All nodes: include common::again::fleet, with its endpoints and accept in Hiera.
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
    # Rather none of this than a balancer without servers, before the first of them has published its facts.
    if empty($nodes) {
      fail('no servers with the role node are known')
    }

    # On a real node /etc/haproxy/haproxy.cfg, after the package, and notifying the service.
    file { "${dir}/haproxy.cfg":
      content => inline_template(@(TEMPLATE)),
        listen web
          bind *:80
          balance roundrobin
        <% @nodes.each do |node| -%>
          server <%= node['hostname'] %> <%= node['ipaddress'] %>:8080 check
        <% end -%>
        | TEMPLATE
    }
  }
  'node': {
    # The names of the nodes are looked up when the catalog is compiled, and PuppetDB may know more of them than a backend.
    trigger { 'refresh load balancers':
      hosts => servers_with_role('haproxy').map |$server| { $server['certname'] },
    }

    # What the balancers build on comes first, and tells them.
    file { "${dir}/shop.conf":
      content => "listen = 8080\n",
      notify  => Trigger['refresh load balancers'],
    }
  }
  default: {
    warning("no role '${facts['role']}'")
  }
}
