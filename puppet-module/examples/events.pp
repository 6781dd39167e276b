# When a web server came up, every load balancer runs. The web server fires nothing: it tells what its runs do, and each load balancer has
# a rule that says what it reacts to.
#
# All nodes: include common::again::fleet, with its endpoints and accept in Hiera. On the web servers common::again::fleet::events is
# { types => ['Service'] }.

# lint:ignore:autoloader_layout
# lint:ignore:nested_classes_or_defines

# A web server.
class roles::web_that_tells {
  package { 'httpd':
    ensure => installed,
  }
  -> service { 'httpd':
    ensure => running,
    enable => true,
  }
}

# A load balancer, which looks again for the web servers.
class roles::lb_that_reacts {
  common::again::on { 'a web server came up':
    resource => 'Service[httpd]',
    class    => 'roles::web_that_tells',
    change   => 'started',
  }

  $lines = servers_with_role('node').map |$server| { "server ${server['hostname']}\n" }

  file { '/etc/haproxy/frontend.cfg':
    content => join($lines),
  }
}
# lint:endignore
# lint:endignore

case $facts['role'] {
  'haproxy': { include roles::lb_that_reacts }
  'node': { include roles::web_that_tells }
  default: { warning("no role '${facts['role']}'") }
}
