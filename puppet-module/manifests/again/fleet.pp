# @summary
#   Adds this node to a fleet, in which a change on one node can run Puppet on others
#
# Installs the program `again-fleet`, writes its settings, and starts its services: one that transfers triggers between this node and the
# backend, sandboxed and as its own user; and the executor, which verifies triggers and starts the runs with `again`, within its cap. The
# class includes `common::again`. Resources of the type `trigger` send triggers.
#
# Nodes identify themselves with their Puppet certificates, which systemd passes to the service. `accept` lists the nodes whose triggers
# this node accepts; it has no default.
#
# @param ensure
#   `absent` stops the services and removes everything that this class has installed, including the state and the user.
#
# @param accept
#   Nodes whose triggers this node accepts: certnames, with `*` for any characters but dots, or trusted extensions. Use `[]` for a node that
#   only sends triggers. Triggers of the node itself are accepted only if the list has its full certname.
#
# @param accept_for
#   Nodes that may send triggers on behalf of other nodes, each with these nodes: for a Puppet server whose reports start runs.
#
# @param operators
#   Nodes that may release the slots of other nodes, and move or reset the locks of this node.
#
# @param backend
#   Kind of backend: `etcd`, or `nats` with JetStream.
#
# @param endpoints
#   Servers of the backend. The certificate of a server has to contain the name that is used here.
#
# @param tls
#   Whether to connect to the backend with TLS.
#
# @param namespace
#   Name of the fleet. Fleets with different names can share a backend and do not see each other. The program's default is `default`. Set it
#   in Hiera, for all nodes, if the backend has `permissions`.
#
# @param trust
#   Source of trust: with `puppet` the node accepts data that is signed with a certificate of Puppet's CA; with `backend`, data from
#   everyone who can write to the backend. `backend` needs TLS with client certificates, or a backend on localhost. A masterless site can
#   have its own CA: see "Without a Puppet server" in doc/fleet/quick-start.md.
#
# @param certname
#   Name of this node in the fleet; by default its certname.
#
# @param certificates
#   Files with which this node identifies itself and verifies others: its certificate `cert` and private `key`, the certificates `ca` of the
#   CA, and its revocation lists `crl`, for triggers and for the servers of the backend. The default for each is Puppet's own file. To keep
#   Puppet's own key away from the service, use another certificate from the same CA with the same name. `revocation` is like Puppet's
#   setting `certificate_revocation`: `chain`, which is the program's default, `leaf`, or `off`, which needs no list.
#
# @param run_cmd
#   Command that a trigger runs here: an array of the program and its arguments, or a string without quotes, which is split at spaces. The
#   program's default is a single run of the agent; set it to `puppet apply …` on a masterless node. If it is Sensitive, no report shows the
#   settings, and only root and the service can read them, so that only root can send triggers.
#
# @param cwd
#   Working directory of `run_cmd`, from which its relative paths start. The program's default is `/root`.
#
# @param published_facts
#   Names of facts that this node publishes, so that other nodes can select it: `uptime_seconds`, `os.name`. It always publishes `role`
#   (from the fact `role` or the trusted extension `pp_role`), `fqdn`, `hostname`, `ipaddress`, its classes and its environment.
#
# @param ttl
#   Maximum time until a trigger from this node has to be accepted. The program's default is one hour.
#
# @param skew
#   Maximum difference between the clocks of two nodes. The program's default is five minutes.
#
# @param spread
#   Random delay of a trigger with many targets: each target waits at most this, multiplied by the number of the others. The program's
#   default is `50ms`.
#
# @param hop_limit
#   Maximum number of hops of a trigger from node to node. The program's default is 10.
#
# @param cap_share
#   Share of the cap of `again` (`common::again::max_runs`) that the triggers of one node may use, in percent. The program's default is 50.
#
# @param firing_group
#   Group whose members may send triggers like root: `puppet` on a server whose reports start runs. While the service is down, their
#   triggers wait in `/var/spool/again-fleet-requests`. With a group other than `root` all local users can read them there.
#
# @param manage_binary
#   Source of the program: `file`, this module's files for the node's architecture, or `source`; `package`, a package, which starts nothing
#   by itself; `none`, not installed by this module. By default the value of `common::again::manage_binary`. The package has the version
#   `common::again::package_ensure` and the name `common::again::package_name` with `-fleet` appended. Manual pages and completions are
#   installed if those of `again` are: see `common::again::manage_docs`.
#
# @param source
#   Path or URL of the program with `manage_binary => file`, instead of this module's files.
#
# @param checksum
#   SHA-256 of the program. Required for a source on the web.
#
# @param binary
#   Path of the program. By default /usr/local/bin/again-fleet, and /usr/bin/again-fleet with `manage_binary => package`.
#
# @param user
#   Name of the user and of the group of the service that connects to the network.
#
# @param pam_service
#   PAM service name of a triggered run. By default that of cron, so that the run has the limits and the environment of a run from cron.
#
# @param events
#   Whether this node publishes the events of its Puppet runs to the fleet as they happen: each change, failure and refresh, and how a run
#   ended. A hash selects events by `types` (`['Service']`), `titles` (`*` stands for any characters) and `tags`, which all have to match,
#   and with `only` those that are `corrective` or that `failed`. Puppet detects corrective changes only in runs of the agent.
#
#   Values are published only with `values`: the old value, the new value and the message. Values that are Sensitive or redacted, and those
#   of resources with `show_diff => false`, are never published. The message of an Exec contains its command.
#
# @param slots
#   Limits how many nodes run Puppet at the same time, with etcd: at most `limit` nodes with the same `group`. If nodes have different
#   limits, each uses the smallest of its own limit and those of the nodes before it in the queue. A run waits for a slot up to `max_wait`
#   and then fails. The program's default is 30 minutes; it has to be less than the agent's `runtimeout`. If the service or the backend is
#   not available, the run starts after a random delay, or waits if `required` is set.
#
#   Reruns and triggered runs wait before they start: see `common::again::wait_for_slot`. All other runs of the agent wait too, unless
#   `prerun` is false: in the `prerun_command` of puppet.conf, which Puppet calls after it has received its catalog and before it applies
#   it. A masterless `puppet apply` does not wait, unless `again` starts it. If something else manages all of puppet.conf, set `prerun` to
#   false and call `again-fleet slot` in its `prerun_command`.
#
# @example A load balancer that web servers may trigger
#   class { 'common::again::fleet':
#     endpoints => ['etcd1.example.com'],
#     accept    => ['web*.example.com'],
#   }
#
# @example A masterless node
#   class { 'common::again::fleet':
#     endpoints => ['etcd1.example.com'],
#     accept    => ['pp_role=frontend'],
#     run_cmd   => 'puppet apply /etc/puppet/code/site.pp',
#   }
#
# @example A node that tells what happens to its services
#   class { 'common::again::fleet':
#     endpoints => ['etcd1.example.com'],
#     accept    => [],
#     events    => { types => ['Service'] },
#   }
#
# @example No more than eight nodes run Puppet at a time
#   class { 'common::again::fleet':
#     endpoints => ['etcd1.example.com'],
#     accept    => ['web*.example.com'],
#     slots     => { group => 'puppetserver', limit => 8 },
#   }
#
# @api public
class common::again::fleet (
  Enum['present', 'absent'] $ensure = 'present',
  Optional[Array[Common::Again::Who]] $accept = undef,
  Hash[Common::Again::Who, Array[Pattern[/\A[a-z0-9._*-]+\z/]]] $accept_for = {},
  Array[Common::Again::Who] $operators = [],
  Enum['etcd', 'nats'] $backend = 'etcd',
  Array[Common::Again::Endpoint] $endpoints = [],
  Boolean $tls = true,
  Optional[Pattern[/\A[A-Za-z0-9_-]{1,64}\z/]] $namespace = undef,
  Enum['puppet', 'backend'] $trust = 'puppet',
  Optional[Pattern[/\A[a-z0-9._-]+\z/]] $certname = undef,
  Common::Again::Certificates $certificates = {},
  Optional[Variant[
      Common::Again::Command,
      Pattern[/\A[\w.,:=@%+\/-]+( +[\w.,:=@%+\/-]+)*\z/],
      Sensitive[Variant[Common::Again::Command, Pattern[/\A[\w.,:=@%+\/-]+( +[\w.,:=@%+\/-]+)*\z/]]],
  ]] $run_cmd = undef,
  Optional[Common::Again::Path] $cwd = undef,
  Array[Pattern[/\A[^[:cntrl:]]{1,512}\z/]] $published_facts = [],
  Optional[Common::Again::Duration] $ttl = undef,
  Optional[Common::Again::Duration] $skew = undef,
  Optional[Variant[Common::Again::Duration, Pattern[/\A[0-9]{1,5}ms\z/]]] $spread = undef,
  Optional[Integer[1, 20]] $hop_limit = undef,
  Optional[Integer[1, 100]] $cap_share = undef,
  Pattern[/\A[a-z_][a-z0-9_-]*\z/] $firing_group = 'root',
  Optional[Enum['file', 'package', 'none']] $manage_binary = undef,
  Optional[Common::Again::Source] $source = undef,
  Optional[Common::Again::Checksum] $checksum = undef,
  Optional[Common::Again::Path] $binary = undef,
  Pattern[/\A[a-z_][a-z0-9_-]*\z/] $user = 'again-fleet',
  Optional[Pattern[/\A[a-z0-9_-]+\z/]] $pam_service = undef,
  Common::Again::Events $events = false,
  Optional[Common::Again::Slots] $slots = undef,
) {
  $present = $ensure == 'present'
  if $present {
    include common::again
  }
  # A catalog that removes the fleet may lack the class `common::again`.
  $of_helper = { 'manage_binary' => 'file', 'package_name' => 'again', 'manage_docs' => true }.reduce({}) |$known, $pair| {
    $variable = "common::again::${pair[0]}"
    $known + { $pair[0] => getvar($variable).lest || { lookup($variable, Data, 'first', $pair[1]) } }
  }
  $managed = $manage_binary.lest || { $of_helper['manage_binary'] }
  $package_name = "${of_helper['package_name']}-fleet"
  $config_file = '/etc/again-fleet.toml'
  $rules_dir = '/etc/again-fleet.d'
  $locks_dir = '/etc/again-fleet-locks.d'
  $unit_dir = '/etc/systemd/system'
  $share_dir = '/usr/local/share'
  $services = [
    'again-fleet.service', 'again-fleet-certificate.path', 'again-fleet-enabled.path', 'again-fleet-executor.service',
    'again-fleet-calls.path', 'again-fleet-calls.service',
  ]
  $sockets = ['again-fleet.socket', 'again-fleet-executor.socket']
  $binary_path = $binary.lest || {
    $managed ? {
      'package' => '/usr/bin/again-fleet',
      default   => '/usr/local/bin/again-fleet',
    }
  }

  # Nothing was ever installed on an unsupported node, so there is nothing to remove.
  $program_file = "${facts.dig('os', 'hardware')}/again-fleet"
  $systemd = ($facts['kernel'] == 'Linux' and $facts.dig('again', 'systemd') != false)
  if $present {
    $has_program = ($managed != 'file' or $source =~ NotUndef or find_file("${module_name}/${program_file}") =~ NotUndef)
    $reasons = [
      $common::again::unsupported_reason,
      $systemd ? { true => undef, default => 'this node has no systemd, by which the two sides of again-fleet are kept apart' },
      $has_program ? { true => undef, default => "no program for ${facts.dig('os', 'hardware')} among the module's files" },
    ].filter |$reason| { $reason =~ NotUndef }
    $unsupported_reason = $reasons[0]
  } else {
    $unsupported_reason = undef
  }
  $active = $present and $unsupported_reason =~ Undef
  if $unsupported_reason =~ NotUndef {
    case $common::again::unsupported {
      'fail': {
        $remedy = "set common::again::unsupported to 'ignore', or build files/${program_file}, or set ${title}::source or manage_binary"
        fail("${title}: ${unsupported_reason}: ${remedy}")
      }
      'warn': { warning("${title}: ${unsupported_reason}: nothing is done there") }
      default: {}
    }
  }
  if !$systemd or $unsupported_reason =~ NotUndef {
    return()
  }

  if $present {
    if $accept == undef {
      fail("${title}: nobody has said whose triggers this node takes: set ${title}::accept, to [] for nobody's")
    }
    if empty($endpoints) {
      fail("${title}: no server of ${backend} is known: set ${title}::endpoints")
    }

    if $slots and $backend != 'etcd' {
      fail("${title}: slots need etcd: on NATS a key that is renewed loses its place. Unset ${title}::slots")
    }

    # The program rejects this combination too.
    $remote = $endpoints.filter |$endpoint| { $endpoint !~ /\A(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?\z/ }
    if $trust == 'backend' and !$tls and !empty($remote) {
      $remedy = "set ${title}::tls to true, or use a backend on localhost"
      fail("${title}: trust 'backend' without TLS lets everybody who reaches ${remote[0]} run Puppet here: ${remedy}")
    }

    $revocations = $certificates['revocation'] ? {
      'off'   => [],
      default => ['crl'],
    }
    $credentials = ($trust == 'puppet' or $tls) ? {
      true    => common::again::credentials(['cert', 'key', 'ca'] + $revocations, $certificates, $title),
      default => {},
    }
    $quoted = $credentials.filter |$_name, $path| { $path !~ Common::Again::Path }
    unless empty($quoted) {
      $first = $quoted.keys[0]
      fail("${title}: a unit of systemd cannot name ${quoted[$first]}, which needs quotes: set ${first} in ${title}::certificates")
    }

    # A string of digits is a number of seconds; `10` keeps a leading zero from meaning octal.
    $slots_settings = $slots.lest || { {} }
    $times = { 'ttl' => $ttl, 'skew' => $skew, 'spread' => $spread, 'slots_max_wait' => $slots_settings['max_wait'] }
    $durations = $times.reduce({}) |$all, $pair| {
      $all + { $pair[0] => $pair[1] ? { /\A[0-9]+\z/ => Integer($pair[1], 10), default => $pair[1] } }
    }
    $plain = $run_cmd ? {
      Sensitive => $run_cmd.unwrap,
      default   => $run_cmd,
    }
    $command = $plain ? {
      String  => split($plain, / +/),
      default => $plain,
    }
    $settings = ({
        'backend'    => $backend,
        'endpoints' => $endpoints,
        'tls'       => $tls,
        'namespace' => $namespace,
        'certname'  => $certname.lest || { $facts.dig('again_fleet', 'certname').lest || { $trusted['certname'] } },
    } + $credentials + {
        'revocation' => $certificates['revocation'],
        'trust'      => $trust,
        'accept'     => $accept,
        'operators'  => $operators,
        'run_cmd'    => $command,
        'cwd'        => $cwd,
        'facts'      => $published_facts,
    } + $durations + {
        'hop_limit'      => $hop_limit,
        'cap_share'      => $cap_share,
        'slots_group'    => $slots_settings['group'],
        'slots_limit'    => $slots_settings['limit'],
        'slots_required' => $slots_settings['required'],
        'helper'         => $common::again::binary_path,
    }).filter |$_key, $value| { $value =~ NotUndef }
  }

  $file_ensure = $ensure ? {
    'present' => 'file',
    default   => 'absent',
  }
  $file = { 'ensure' => $file_ensure, 'owner' => 'root', 'group' => 'root' }

  if $managed == 'file' {
    if $source =~ Pattern[/\Ahttps?:/] and $checksum == undef {
      fail("${title}: a program from the web needs ${title}::checksum, its SHA-256")
    }
    $content = $present ? {
      true    => { 'source' => $source.lest || { "puppet:///modules/${module_name}/${program_file}" } },
      default => {},
    }
    $checked = $checksum ? {
      undef   => {},
      default => { 'checksum' => 'sha256', 'checksum_value' => $checksum },
    }

    file { $binary_path:
      mode   => '0755',
      backup => false,
      *      => $file + $content + $checked,
    }
  }

  if $managed == 'package' {
    $package = $present ? {
      true    => $common::again::package_ensure,
      default => 'absent',
    }

    package { $package_name:
      ensure => $package,
    }
  }

  $program = $managed ? {
    'file'    => [File[$binary_path]],
    'package' => [Package[$package_name]],
    default   => [],
  }

  # File of the module, directory on the node, name on the node.
  $shared = [
    ['man/again-fleet.8', 'man/man8', 'again-fleet.8'],
    ['man/again-fleet-json.5', 'man/man5', 'again-fleet-json.5'],
    ['man/again-fleet.toml.5', 'man/man5', 'again-fleet.toml.5'],
    ['completions/again-fleet.bash', 'bash-completion/completions', 'again-fleet'],
    ['completions/_again-fleet', 'zsh/site-functions', '_again-fleet'],
    ['completions/again-fleet.fish', 'fish/vendor_completions.d', 'again-fleet.fish'],
  ].filter |$entry| {
    $managed == 'file' and $of_helper['manage_docs'] and (!$present or find_file("${module_name}/${entry[0]}"))
  }
  if $present and !empty($shared) {
    $directories = $shared.map |$entry| { "${share_dir}/${entry[1]}" }.unique

    exec { 'again-fleet-directories':
      * => common::again::directories(*$directories),
    }
  }
  $shared.each |$entry| {
    $text = $present ? {
      true    => { 'source' => "puppet:///modules/${module_name}/${entry[0]}", 'require' => Exec['again-fleet-directories'] },
      default => {},
    }

    file { "${share_dir}/${entry[1]}/${entry[2]}":
      mode => '0644',
      *    => $file + $text,
    }
  }

  $pam = $pam_service.lest || { $facts['os']['family'] ? { 'Debian' => 'cron', default => 'crond' } }
  $started = { 'binary' => $binary_path, 'options' => [] }
  $units = $present ? {
    true    => {
      'again-fleet.service'             => { 'user' => $user, 'credentials' => $credentials } + $started,
      'again-fleet.socket'              => { 'group' => $firing_group },
      'again-fleet-executor.service'        => { 'pam' => $pam } + $started,
      'again-fleet-executor.socket'         => { 'user' => $user },
      'again-fleet-certificate.path'    => { 'paths' => $credentials.values },
      'again-fleet-certificate.service' => {},
      'again-fleet-enabled.path'        => { 'state_dir' => $common::again::state_dir.lest || { '/var/lib/again' } },
      'again-fleet-enabled.service'     => {},
      'again-fleet-calls.path'          => {},
      'again-fleet-calls.service'       => $started,
    }.filter |$name, $_variables| { !empty($credentials) or $name !~ /certificate/ },
    default => {},
  }
  $all_units = $services + $sockets + ['again-fleet-certificate.service', 'again-fleet-enabled.service']
  $all_units.each |$name| {
    $unit = $name in $units ? {
      true    => { 'ensure' => 'file', 'content' => epp("${module_name}/${name}.epp", $units[$name]) },
      default => { 'ensure' => 'absent' },
    }

    file { "${unit_dir}/${name}":
      mode => '0644',
      *    => $file + $unit,
    }
  }
  $spool = '/var/spool/again-fleet'
  $requests = "${spool}-requests"
  $unit_files = $all_units.map |$name| { File["${unit_dir}/${name}"] }

  if $present {
    group { $user:
      ensure => 'present',
      system => true,
    }

    user { $user:
      ensure     => 'present',
      gid        => $user,
      system     => true,
      home       => '/nonexistent',
      managehome => false,
      shell      => '/usr/sbin/nologin',
      comment    => 'Carries triggers between nodes',
    }

    $toml = epp("${module_name}/again-fleet.toml.epp", { 'settings' => $settings, 'accept_for' => $accept_for })
    # A command may contain a password.
    $config = $run_cmd ? {
      Sensitive => { 'content' => Sensitive($toml), 'mode' => '0640', 'group' => $user },
      default   => { 'content' => $toml, 'mode' => '0644' },
    }

    file { $config_file:
      * => $file + $config,
    }

    # Facts under the names that other nodes use, which Facter may have renamed.
    $basics = {
      'role'      => $facts['role'].lest || { $trusted.dig('extensions', 'pp_role') },
      'fqdn'      => $facts.dig('networking', 'fqdn'),
      'hostname'  => $facts.dig('networking', 'hostname'),
      'ipaddress' => $facts.dig('networking', 'ip'),
    }
    $published = $published_facts.reduce($basics) |$known, $name| {
      $known + { $name => $facts[$name].lest || { get($facts, $name) |$_error| { undef } } }
    }

    again_inventory { 'this node':
      facts   => $published.filter |$_name, $value| { $value =~ Variant[String, Numeric, Boolean] },
      program => $binary_path,
      require => Service['again-fleet.service'],
    }

    if $events {
      $told = $events ? {
        Boolean => {},
        default => $events,
      }

      # Runs write here. The service has read access through its group, and does not write.
      file { $spool:
        ensure  => 'directory',
        owner   => 'root',
        group   => $user,
        mode    => '2750',
        require => Group[$user],
      }

      again_events { 'this node':
        spool  => $spool,
        helper => $common::again::binary_path,
        *      => $told,
      }
    } else {
      file { $spool:
        ensure => 'absent',
        force  => true,
        backup => false,
      }
    }

    # Triggers wait here while the service is down. Root and the firing group write them; the service only reads them. If the directory
    # does not belong to the group of the service, every user can read them.
    $request_rights = $firing_group ? {
      'root'  => { 'group' => $user, 'mode' => '2750' },
      default => { 'group' => $firing_group, 'mode' => '3775' },
    }
    file { $requests:
      ensure  => 'directory',
      owner   => 'root',
      require => Group[$user],
      before  => Service['again-fleet.service'],
      *       => $request_rights,
    }

    # The executor needs no restart: it reads its settings for each request, and does not run permanently.
    service { $sockets:
      ensure   => 'running',
      enable   => true,
      provider => 'systemd',
      require  => $unit_files + $program + [User[$user]],
    }

    $paths_watched = empty($credentials) ? {
      true    => ['again-fleet-enabled.path', 'again-fleet-calls.path'],
      default => ['again-fleet-certificate.path', 'again-fleet-enabled.path', 'again-fleet-calls.path'],
    }
    service { $paths_watched:
      ensure   => 'running',
      enable   => true,
      provider => 'systemd',
      require  => $unit_files,
    }

    service { 'again-fleet.service':
      ensure    => 'running',
      enable    => true,
      provider  => 'systemd',
      require   => [Service[$sockets], Class['common::again::install']],
      subscribe => $program + [File[$config_file, "${unit_dir}/again-fleet.service"]],
    }

    $prerun = ($slots =~ NotUndef and $slots_settings['prerun'] != false) ? {
      true    => 'present',
      default => 'absent',
    }
    again_prerun { 'a slot':
      ensure   => $prerun,
      program  => $binary_path,
      required => $slots_settings['required'] == true,
      require  => Service['again-fleet.service'],
    }

    # Rules and locks that are no longer in the manifest are removed from the node.
    file { [$rules_dir, $locks_dir]:
      ensure  => 'directory',
      owner   => 'root',
      group   => 'root',
      mode    => '0755',
      recurse => true,
      purge   => true,
      force   => true,
      backup  => false,
      notify  => Exec['again-fleet-rules'],
    }

    # The service reloads the rules without an interruption. The executor reads them for each request.
    exec { 'again-fleet-rules':
      * => $common::again::exec + {
        'command'     => ['/usr/bin/systemctl', 'try-reload-or-restart', 'again-fleet.service'],
        'refreshonly' => true,
        'logoutput'   => 'on_failure',
        'require'     => Service['again-fleet.service'],
      },
    }
  } else {
    # Before the program is removed: no run starts if its `prerun_command` fails.
    again_prerun { 'a slot':
      ensure => 'absent',
      before => Service[$services + $sockets],
    }

    service { $services + $sockets:
      ensure   => 'stopped',
      enable   => false,
      provider => 'systemd',
      before   => $unit_files + $program,
    }

    # No copies in the filebucket.
    file { [$config_file, $rules_dir, $locks_dir, '/var/lib/again-fleet', $spool, $requests]:
      ensure  => 'absent',
      force   => true,
      backup  => false,
      require => Service[$services],
    }

    user { $user:
      ensure  => 'absent',
      require => Service[$services],
    }

    group { $user:
      ensure  => 'absent',
      require => User[$user],
    }
  }
}
