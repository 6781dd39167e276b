# When a web server starts, every load balancer runs: each knows the other's class, and no name of a node. Nodes tell their classes to the
# fleet by themselves.
#
# All nodes: include common::again::fleet, with its endpoints and accept in Hiera.
$dir = $facts['again_example_dir'] ? {
  undef   => '/var/tmp/again-example',
  default => $facts['again_example_dir'],
}

file { $dir:
  ensure => directory,
}

# lint:ignore:autoloader_layout
# lint:ignore:nested_classes_or_defines

# A web server. On a real node its service is that of a package.
class roles::frontend_web {
  service { 'httpd':
    ensure   => running,
    provider => base,
    start    => "/usr/bin/touch ${::dir}/httpd",
    status   => "/usr/bin/test -e ${::dir}/httpd",
    stop     => "/bin/rm ${::dir}/httpd",
    require  => File[$::dir],
  }
  ~> trigger { 'a web server came up':
    class => 'roles::frontend_lb',
  }
}

# A load balancer, which looks again for the web servers.
class roles::frontend_lb {
  $lines = servers_with_role('node').map |$server| { "server ${server['hostname']}\n" }

  file { "${::dir}/frontend.cfg":
    content => join($lines),
  }
}
# lint:endignore
# lint:endignore

case $facts['role'] {
  'haproxy': { include roles::frontend_lb }
  'node': { include roles::frontend_web }
  default: { warning("no role '${facts['role']}'") }
}
