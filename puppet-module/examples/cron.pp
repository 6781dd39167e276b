# The agent from cron: two runs an hour, and one more as soon as a run asks for it. Nothing of `again` is in the crontab: it is the run that
# asks, and its rerun is the same command. Cron's mail does not wait for it; what it says is in `again log`.
include common::again

$puppet = 'aio_agent_version' in $facts ? {
  true    => '/opt/puppetlabs/bin/puppet',
  default => '/usr/bin/puppet',
}
# Each node at its own time. No `splay`: reruns have a jitter of their own.
$first = Integer(fqdn_rand(30, 'again-example'))
$second = $first + 30

service { 'puppet':
  ensure => stopped,
  enable => false,
}

file { '/etc/cron.d/puppet-agent':
  mode    => '0644',
  content => @("CRON"),
    # Written by Puppet
    ${first},${second} * * * * root ${puppet} agent --onetime --no-daemonize --no-splay --logdest syslog
    | CRON
}
