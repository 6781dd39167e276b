# @summary
#   Installs a backend for `again-fleet` on this node: a single etcd or NATS server, or a member of a cluster
#
# A simple setup from the packages of the distribution: mutual TLS with Puppet's certificates, storage on disk, compaction, and a quota that
# suits a fleet. Every owner of a certificate of Puppet's CA can connect. Trust rests on the signatures of the stored data; in addition,
# `permissions` limits the keys that a node can read and write. A site that runs its own etcd, or its own NATS with JetStream, can use that
# one and does not need this class.
#
# The server has its own copy of the node's private key, which only its user can read, because it has no access to Puppet's file.
#
# For etcd, the owner of a certificate named `root` is the superuser. With etcd the class fails if the CA has signed such a certificate,
# unless it has expired or been revoked. The class can check this only if it is compiled on the CA; elsewhere it fails if `nodes` contains
# root.
#
# @param ensure
#   `absent` stops the server and removes its configuration and the copies of the certificates. The package and the data stay.
#
# @param backend
#   Kind of server: `etcd` or `nats`.
#
# @param members
#   Certnames of all members of the cluster, including this node: one, three or another odd number. The members have to reach each other by
#   these names: a certificate is for a name, not for an address. The list cannot change once the cluster has started.
#
# @param certname
#   Certname of this node; by default that of its certificate.
#
# @param certificates
#   Files that are copied for the server: the certificate `cert` and the private `key` of this node, the certificates `ca` of the CA, and
#   its revocation list `crl`, which etcd checks for each new connection and NATS ignores. The default for each is Puppet's own file.
#
# @param listen
#   Address on which the server listens. etcd accepts only addresses, not names.
#
# @param client_port
#   Port for nodes; by default 2379 with etcd, 4222 with NATS.
#
# @param peer_port
#   Port for other members; by default 2380 with etcd, 6222 with NATS.
#
# @param quota
#   Maximum size of the data in MiB. The triggers of a thousand nodes need a few MiB; events take up to 128, on NATS up to 64.
#
# @param permissions
#   Whether each node has only its own rights: it reads and removes only keys that are addressed to it; with NATS it also writes only under
#   its own name. On etcd every node can still overwrite the triggers of another one, and on both a malicious node can still disturb the
#   fleet: the signatures decide which data is accepted. On etcd the certnames of the members are administrators.
#
#   A new node gets its rights in the next run on the server; until then everything that it sends waits. The rights apply to the fleet that
#   `common::again::fleet::namespace` names in Hiera, otherwise to `default`. If you set this to false again, NATS stops checking rights;
#   etcd continues until `etcdctl auth disable`.
#
# @param nodes
#   Certnames of the nodes that get rights with `permissions`. By default all nodes for which the CA has signed a certificate, according to
#   the files of the CA on the machine that compiles the catalog. On a compiler without the CA, use PuppetDB:
#   `puppetdb_query('nodes[certname] {}').map |$node| { $node['certname'] }`.
#
#   A node whose certificates have all expired or been revoked loses its rights in the next run on the server, even if it is listed. Without
#   the files of the CA the class cannot check that: remove the node from the list, or from PuppetDB with `puppet node deactivate`.
#
# @param platform
#   Names of the package, service, user and configuration file of each server on this operating system. The module has them for the families
#   Debian and RedHat; on others the catalog fails unless Hiera has them. For etcd, `config` is the environment file of its service.
#
# @param package_name
#   Name of the package; by default that of `platform`.
#
# @param service_name
#   Name of the service; by default that of `platform`.
#
# @example One etcd
#   include common::again::backend
#
# @example A cluster of three, on each of the three nodes
#   class { 'common::again::backend':
#     members => ['backend1.example.com', 'backend2.example.com', 'backend3.example.com'],
#   }
#
# @example Rights for each node
#   class { 'common::again::backend':
#     backend      => 'nats',
#     permissions => true,
#   }
#
# @api public
class common::again::backend (
  Enum['present', 'absent'] $ensure = 'present',
  Enum['etcd', 'nats'] $backend = 'etcd',
  Optional[Array[Pattern[/\A[a-z0-9._-]+\z/], 1]] $members = undef,
  Optional[Pattern[/\A[a-z0-9._-]+\z/]] $certname = undef,
  Common::Again::ServerCertificates $certificates = {},
  String[1] $listen = '0.0.0.0',
  Optional[Integer[1, 65535]] $client_port = undef,
  Optional[Integer[1, 65535]] $peer_port = undef,
  Integer[256, 8192] $quota = 512,
  Boolean $permissions = false,
  Optional[Array[Pattern[/\A[a-z0-9._-]+\z/]]] $nodes = undef,
  Hash[Enum['etcd', 'nats'], Common::Again::Platform] $platform = {},
  Optional[String[1]] $package_name = undef,
  Optional[String[1]] $service_name = undef,
) {
  $own_name = $certname.lest || { $trusted['certname'] }
  $all = $members.lest || { [$own_name] }
  unless $own_name in $all {
    fail("${title}: ${own_name} is not among the members ${join($all, ', ')}: name this node too, as its certificate does")
  }
  if $all.length % 2 == 0 {
    fail("${title}: ${all.length} members can lose no more than ${all.length - 1} can: use one, three or five")
  }

  $default = $platform[$backend]
  if $default == undef {
    $system = "${facts['os']['family']} (${facts['os']['name']})"
    fail("${title}: the module does not know the ${backend} of ${system}: set ${title}::platform, or use servers that the site runs itself")
  }
  # Namespace of the fleet, from the setting of its nodes in Hiera.
  $namespaces = [lookup('common::again::fleet::namespace', Pattern[/\A[A-Za-z0-9_-]{1,64}\z/], 'first', 'default')]
  $port = { 'etcd' => [2379, 2380], 'nats' => [4222, 6222] }[$backend]
  $package = $package_name.lest || { $default['package'] }
  $service = $service_name.lest || { $default['service'] }
  $directory = "/etc/again-backend-${backend}"
  $parameters = {
    'certname'    => $own_name,
    'members'     => $all,
    'listen'      => $listen,
    'client_port' => $client_port.lest || { $port[0] },
    'peer_port'   => $peer_port.lest || { $port[1] },
    'quota'       => $quota,
    'directory'   => $directory,
  } + ($backend ? {
      'nats'  => { 'permissions' => $permissions },
      default => {},
  })

  if $ensure == 'present' {
    $sources = common::again::credentials(['cert', 'key', 'ca', 'crl'], $certificates, $title)

    # NATS without rights for each node does not need them.
    $signed = ($backend == 'etcd' or $permissions) ? {
      true    => common::again::certificates(),
      default => undef,
    }
    $is_valid = $signed.lest || { {} }
    $listed = $nodes.lest || { $is_valid.keys }
    # A node keeps its rights if the inventory of the CA does not list it, or is not on this machine.
    $enrolled = $listed.filter |$node| { $is_valid[$node] != false }.unique.sort
    if $backend == 'etcd' and ($is_valid['root'] or 'root' in $enrolled) {
      $remedy = "revoke it with 'puppetserver ca clean --certname root', and leave root out of ${title}::nodes"
      fail("${title}: etcd takes the owner of a certificate named root for its superuser: ${remedy}")
    }

    package { $package:
      ensure => 'installed',
    }

    file { $directory:
      ensure  => 'directory',
      owner   => 'root',
      group   => 'root',
      mode    => '0755',
      require => Package[$package],
    }

    # etcd reads these files for each connection; NATS has to be restarted to use a renewed certificate.
    $told = $backend ? {
      'etcd' => { 'before' => Service[$service] },
      'nats' => { 'notify' => Service[$service] },
    }
    $sources.each |$name, $source| {
      file { "${directory}/${name}.pem":
        ensure    => 'file',
        source    => $source,
        owner     => $default['user'],
        group     => 'root',
        mode      => '0400',
        show_diff => false,
        backup    => false,
        *         => $told,
      }
    }

    file { $default['config']:
      ensure  => 'file',
      content => epp("${module_name}/again-backend-${backend}.epp", $parameters),
      owner   => 'root',
      group   => 'root',
      mode    => '0644',
      require => Package[$package],
      notify  => Service[$service],
    }

    if $backend == 'nats' {
      file { '/var/lib/nats':
        ensure => 'directory',
        owner  => $default['user'],
        group  => $default['user'],
        mode   => '0700',
        before => Service[$service],
      }
    }

    service { $service:
      ensure  => 'running',
      enable  => true,
      require => Package[$package],
    }

    if $permissions {
      if $nodes == undef and $signed == undef {
        fail("${title}: there is no CA where this catalog is compiled: set ${title}::nodes, for instance from PuppetDB")
      }
      $exec = { 'provider' => 'posix', 'path' => ['/usr/sbin', '/usr/bin', '/sbin', '/bin'], 'logoutput' => 'on_failure' }

      if $backend == 'nats' {
        file { "${directory}/rights.conf":
          ensure  => 'file',
          content => epp("${module_name}/again-backend-nats-rights.epp", { 'nodes' => $enrolled, 'namespaces' => $namespaces }),
          owner   => 'root',
          group   => $default['user'],
          mode    => '0640',
          before  => File[$default['config']],
        }

        # Reloads the rights. Only nodes that have lost their rights are disconnected.
        exec { 'again-backend-rights':
          command     => ['systemctl', 'reload', $service],
          refreshonly => true,
          subscribe   => File["${directory}/rights.conf"],
          require     => Service[$service],
          *           => $exec,
        }
      } else {
        $enrol = "${directory}/enrol"
        $variables = {
          'directory'  => $directory,
          'endpoint'   => "https://${own_name}:${parameters['client_port']}",
          'members'    => $all,
          'namespaces' => $namespaces,
        }

        $client = $default['client'].lest || { $package }
        if $client != $package {
          package { $client:
            ensure => 'installed',
          }
        }

        file {
          default:
            ensure => 'file',
            owner  => 'root',
            group  => 'root',
            ;
          $enrol:
            content => epp("${module_name}/again-backend-etcd-enrol.epp", $variables),
            mode    => '0755',
            ;
          "${directory}/nodes":
            content => $enrolled.map |$node| { "${node}\n" }.join,
            mode    => '0644',
            ;
        }

        exec { 'again-backend-rights':
          command   => [$enrol],
          unless    => [[$enrol, '--check']],
          timeout   => 1800,
          tries     => 3,
          try_sleep => 5,
          require   => [Service[$service], Package[$client], File[$enrol, "${directory}/nodes"]],
          *         => $exec,
        }
      }
    }
  } else {
    service { $service:
      ensure => 'stopped',
      enable => false,
    }

    file { [$default['config'], $directory]:
      ensure  => 'absent',
      force   => true,
      backup  => false,
      require => Service[$service],
    }
  }
}
