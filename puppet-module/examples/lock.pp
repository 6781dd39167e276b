# One of three nodes is the primary of a database, whichever holds the lock, and the two others are its replicas. When it is away for a
# minute, or when an operator passes the lock on, Puppet runs on all of them, and their manifests follow.
#
# All nodes: include common::again::fleet, with its endpoints in Hiera. Nobody has to be in anybody's `accept` for it.

# lint:ignore:autoloader_layout
# lint:ignore:nested_classes_or_defines

# Whatever must never be done by two is done by this script only, on the storage that they share: it notes the highest token that it has
# seen, and refuses what comes with a lower one. A lease alone is no fence: the fact was true when the run began, and with a cached catalog
# longer ago.
class profile::db::fence (
  String[1] $shared = '/srv/shared',
  String[1] $script = '/usr/local/sbin/with-token',
) {
  file { $script:
    ensure  => 'file',
    owner   => 'root',
    group   => 'root',
    mode    => '0755',
    content => @("SCRIPT"/L$),
      #!/bin/sh
      # with-token TOKEN COMMAND...: runs it, unless somebody came with a higher token.
      set -eu
      token=\$1
      shift
      exec 9>>${shared}/token.lock
      flock 9
      seen=\$(cat ${shared}/token 2>/dev/null || echo 0)
      if [ "\$token" -lt "\$seen" ]; then
        echo "token \$token is older than \$seen: another node is the primary now" >&2
        exit 1
      fi
      echo "\$token" >${shared}/token.new
      sync ${shared}/token.new
      mv ${shared}/token.new ${shared}/token
      # Nothing that it leaves behind keeps the lock.
      "\$@" 9>&-
      | SCRIPT
  }
}

# The one that is written to. Also one that is the primary already notes a token that has grown: somebody else had it meanwhile.
class profile::db::primary (
  Integer[1] $token,
) {
  include profile::db::fence

  file { '/etc/db/role':
    content => "primary\n",
  }
  -> exec { "promote with token ${token}":
    command => "${profile::db::fence::script} ${token} /usr/local/sbin/db promote",
    unless  => "/bin/sh -c 'test \"\$(cat ${profile::db::fence::shared}/token)\" = ${token} && /usr/local/sbin/db is-primary'",
    require => File[$profile::db::fence::script],
  }
}

# One that follows it.
class profile::db::replica (
  String[1] $primary,
) {
  file { '/etc/db/role':
    content => "replica of ${primary}\n",
  }
  -> exec { "follow ${primary}":
    command => "/usr/local/sbin/db follow ${primary}",
    unless  => "/usr/local/sbin/db follows ${primary}",
  }
}

# All three of them.
class role::db {
  common::again::lock { 'db-master':
    candidates => ['db1.example.com', 'db2.example.com', 'db3.example.com'],
    prefer     => ['db1.example.com'],
  }

  $lock = $facts.dig('again_fleet', 'locks', 'db-master').lest || { {} }
  if $lock['is_mine'] {
    class { 'profile::db::primary': token => $lock['token'] }
  } elsif $lock['holder'] {
    class { 'profile::db::replica': primary => $lock['holder'] }
  } else {
    # Nobody is certain to hold it: all stays as it is.
    notice("db-master: ${lock['why']}")
  }
}
# lint:endignore
# lint:endignore

include role::db
