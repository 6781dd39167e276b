# The agent from a systemd timer: a `oneshot` service, which systemd clears of every process once the run has ended. A pending request is
# not among them: it has a scope of its own. See `systemctl list-units 'again-*'` and `again status`.
include common::again

$puppet = 'aio_agent_version' in $facts ? {
  true    => '/opt/puppetlabs/bin/puppet',
  default => '/usr/bin/puppet',
}

service { 'puppet':
  ensure => stopped,
  enable => false,
}

file { '/etc/systemd/system/puppet-run.service':
  mode    => '0644',
  content => @("UNIT"),
    # Written by Puppet
    [Unit]
    Description=A run of the Puppet agent
    Wants=network-online.target
    After=network-online.target

    [Service]
    Type=oneshot
    ExecStart=${puppet} agent --onetime --no-daemonize --no-splay --detailed-exitcodes
    # Something was changed.
    SuccessExitStatus=2
    | UNIT
}

file { '/etc/systemd/system/puppet-run.timer':
  mode    => '0644',
  content => @(UNIT),
    # Written by Puppet
    [Unit]
    Description=Runs of the Puppet agent

    [Timer]
    OnBootSec=1min
    OnUnitInactiveSec=30min
    RandomizedDelaySec=1min

    [Install]
    WantedBy=timers.target
    | UNIT
}

# Puppet reloads systemd by itself where a unit has changed on disk.
-> service { 'puppet-run.timer':
  ensure  => running,
  enable  => true,
  require => File['/etc/systemd/system/puppet-run.service'],
}
