# @summary
#   Lets a manifest ask for another Puppet run: `notify => Exec['again']`
#
# Installs the program `again`, writes its settings, and declares `Exec['again']`. When a resource changes and notifies this Exec, the same
# Puppet command runs once more after the current run has ended. If several resources notify it in one run, one run follows. The report and
# `again status` show the requested run, when it is due and how to stop it.
#
# Five things to know:
#
# - Puppet skips a refresh if **one** of the notifying resources failed. To get a rerun in spite of a failure, or because of it, set
#   `on_failure` or use `common::again::until`.
# - Under `--tags` Puppet evaluates only resources with one of the tags. All Execs of this module have the tag `again`, the tags of the
#   class that first included or declared them, and those of the parameter `tags`. `puppet agent -t --tags profile::db,again` requests
#   reruns as usual; a run without a matching tag cannot. The rerun has the same `--tags`.
# - Under noop the Execs request nothing.
# - The Execs are not contained in this class, and depend only on the program and its settings. `require => Class['common::again']`,
#   `Class['common::again'] -> …` and `contain common::again` in an earlier profile order the installation only; any later resource can
#   notify the Exec. The README lists the orders that are a dependency cycle nevertheless, and how to avoid them.
# - Set parameters in Hiera. A declaration with parameters (`class { 'common::again': … }`) has to be evaluated before anything includes
#   the class, and the defines of this module include it.
#
# @param ensure
#   `absent` stops pending timers and then removes everything that this class has installed, including state and logs. If that includes the
#   program `again`, waiters of other users are stopped too. The Execs stay in the catalog, so that manifests which notify them still
#   compile, but request nothing.
#
# @param unsupported
#   Action on an unsupported node: a kernel other than Linux, an architecture without a build of `again`, or, for `common::again::fleet`, a
#   node without systemd. `fail` fails the catalog. With `warn` and `ignore` a profile that is shared with such nodes compiles there:
#   nothing is installed, and the Execs only print that they do nothing. `warn` also logs a warning on the machine that compiles the
#   catalog.
#
# @param manage_binary
#   Source of the program `again`: `file`, this module's files for the node's architecture, or `source`; `package`, a package; `none`, not
#   installed by this module. Changing the value does not remove the former installation; `ensure => absent` in between does.
#
# @param source
#   Path or URL of the program with `manage_binary => file`, instead of this module's files: any `source` of a File resource, such as
#   `puppet:///modules/profile/again` or an https URL. Use it for architectures that the module's files lack.
#
# @param checksum
#   SHA-256 of the program. A file with another checksum is not installed, and an installed program is downloaded again only if its checksum
#   differs. Required for a source on the web.
#
# @param binary
#   Path of the program. By default /usr/local/bin/again, /usr/bin/again with `manage_binary => package`, and ~/.local/bin/again with
#   `manage_binary => file` if Puppet does not run as root.
#
# @param package_name
#   Name of the package, with `manage_binary => package`.
#
# @param package_ensure
#   `ensure` of the package.
#
# @param manage_config
#   Whether to write the configuration file. If false, the settings below have no effect.
#
# @param config_file
#   Path of the configuration file. By default /etc/again.toml, or ~/.config/again.toml if Puppet does not run as root and the file is
#   managed. On the command line `again` reads /etc/again.toml; for another path, set `AGAIN_CONFIG`. If the path is not the default, the
#   fact needs `AGAIN_CONFIG` in the environment of Puppet too.
#
# @param manage_docs
#   Whether to install the manual pages again(8) and again.toml(5), and the completions for bash, zsh and fish, if the module's files have
#   them: in /usr/local/share, or in ~/.local/share if Puppet does not run as root. Applies only to `manage_binary => file`, since a package
#   contains its own.
#
# @param manage_boot_unit
#   Whether to install and enable again-resume.service, which starts new waiters for pending timers after a boot, and again-pending.path,
#   which starts a new waiter within a minute for a timer that has lost its own. By default true if systemd runs and Puppet runs as root.
#   Set it to true for images that are built without systemd running.
#
# @param on_failure
#   Whether a run with failed resources requests another one: with `true` as soon as it has ended; with a delta, as in
#   `common::again::delta`, after that time. For nodes that are being set up, and for temporary failures: a mirror that does not answer, a
#   peer that is not yet available. A permanent failure costs `max_runs` runs per window; then the report shows the cap. The timer is named
#   `again-on-failure`.
#
#   Nothing is requested under noop, if the run was stopped, or if only requests of this module have failed. A catalog that does not compile
#   or has a dependency cycle cannot request a run, because no resource is evaluated.
#
# @param tags
#   Additional tags of the Execs of this module, so that runs with `--tags` evaluate them.
#
# @param deltas
#   Titles and parameters of `common::again::delta` resources to declare. In Hiera the hashes of all levels are merged, also for `untils`.
#
# @param untils
#   Titles and parameters of `common::again::until` resources to declare.
#
# @param jitter
#   Setting: maximum of the random part of the delay. By default a quarter of the delta and at least 2 seconds. `0` means no random part.
#
# @param max_jitter
#   Setting: maximum to which the jitter grows in a chain of reruns that does not end. The program's default is 300 seconds.
#
# @param max_runs
#   Setting: maximum number of reruns in a window. The program's default is 10.
#
# @param max_runs_total
#   Setting: maximum number of reruns of all commands of a user together in a window. The program's default is three times `max_runs`.
#
# @param window
#   Setting: length of the window. The program's default is one hour.
#
# @param on_cap
#   Setting: action of a request at the cap. The program's default is `fail`.
#
# @param wait_for_slot
#   Setting `slots`: whether a rerun of Puppet waits for a slot of the fleet before it starts, as with `again fleet slot`. The parameter
#   `slots` of `common::again::fleet` sets the group and its limit. The program's default is false.
#
# @param command
#   Setting: command to run instead of the one that Puppet was started with, for sites that run Puppet through a wrapper. If it is set, no
#   report shows the content of the configuration file. If it is Sensitive, only the owner can read the file.
#
# @param state_dir
#   Setting: directory of the records. `ensure => absent` removes it only if the last part of its path contains `again`.
#
# @param pending
#   Settings of pending requests, by their names in again.toml(5):
#
#   - `save_environment`: whether to store the environment of the run on disk, in a file that only its owner can read, so that the request
#     has it after a reboot. By default true.
#   - `scope`: `auto` moves the waiter of a request from root out of the systemd service in which it was made; `never` does not.
#   - `container`: `auto` refuses a request in a container that may end with its run; `stays` is for a container that continues.
#   - `hold_before_shutdown`: time before a shutdown in which due requests are held. By default 15 minutes; 0 holds nothing.
#   - `stuck`: action if a run exceeds its time and blocks a request: `report`, the default, shows it; `end` ends it.
#
# @param logs
#   Settings of the logs of reruns, by their names in again.toml(5):
#
#   - `log_dir`: directory of the logs. `ensure => absent` removes it under the same condition as `state_dir`.
#   - `keep_logs`: number of logs to keep for each command. By default 20.
#   - `max_log_size`: maximum size of a log after its rerun has ended; of a larger one, beginning and end are kept. By default 16M.
#   - `max_logs_size`: maximum size of all logs together. By default 256M.
#
# @param puppet_paths
#   Settings: paths of the agent's files, by the names of Puppet's settings: `agent_catalog_run_lockfile`, `agent_disabled_lockfile`,
#   `lastrunfile` and `pidfile`. By default the paths of this very run, from the fact.
#
# @example Run again once this file is there
#   include common::again
#
#   file { '/var/tmp/again-joined':
#     ensure => file,
#     notify => Exec['again'],
#   }
#
# @example In Hiera: a cap of six reruns in half an hour, and the helper from a package
#   common::again::manage_binary: 'package'
#   common::again::max_runs: 6
#   common::again::window: '30m'
#
# @example In Hiera: a node that is being set up tries again after failures, a minute later
#   common::again::on_failure: '1m'
#
# @example In Hiera: a delta that resources notify, and a condition to wait for
#   common::again::deltas:
#     cluster: { delta: '2m' }
#   common::again::untils:
#     peers joined: { check: ['/usr/bin/test', '-f', '/var/lib/cluster/joined'] }
#
# @example In Hiera: remove it
#   common::again::ensure: 'absent'
#
# @api public
class common::again (
  Enum['present', 'absent'] $ensure = 'present',
  Enum['fail', 'warn', 'ignore'] $unsupported = 'fail',
  Enum['file', 'package', 'none'] $manage_binary = 'file',
  Optional[Common::Again::Source] $source = undef,
  Optional[Common::Again::Checksum] $checksum = undef,
  Optional[Common::Again::Path] $binary = undef,
  String[1] $package_name = 'again',
  String[1] $package_ensure = 'installed',
  Boolean $manage_config = true,
  Optional[Common::Again::Path] $config_file = undef,
  Boolean $manage_docs = true,
  Optional[Boolean] $manage_boot_unit = undef,
  Variant[Boolean, Common::Again::Duration] $on_failure = false,
  Array[String[1]] $tags = [],
  Hash[String[1], Hash[String[1], Any]] $deltas = {},
  Hash[String[1], Hash[String[1], Any]] $untils = {},
  Optional[Common::Again::Duration] $jitter = undef,
  Optional[Common::Again::Duration] $max_jitter = undef,
  Optional[Integer[0, 4294967295]] $max_runs = undef,
  Optional[Integer[0, 4294967295]] $max_runs_total = undef,
  Optional[Common::Again::Duration] $window = undef,
  Optional[Common::Again::OnCap] $on_cap = undef,
  Optional[Boolean] $wait_for_slot = undef,
  Optional[Variant[Common::Again::Command, Sensitive[Common::Again::Command]]] $command = undef,
  Optional[Common::Again::Absolutepath] $state_dir = undef,
  Common::Again::Pending $pending = {},
  Common::Again::Logs $logs = {},
  Common::Again::PuppetPaths $puppet_paths = {},
) {
  # The module under its other name, `again` or `common::again`, would manage the same files.
  $other = (['again', 'common::again'] - $title)[0] # both names
  if defined(Class["${other}::requests"]) {
    fail("${title} and ${other} are one module under two names, and this catalog has both: use one name everywhere, also in Hiera")
  }

  # The fact is missing in a first run without pluginsync.
  $fact = $facts['again'] ? {
    Hash    => $facts['again'],
    default => {},
  }

  $program = "${facts.dig('os', 'hardware')}/again"
  $carried = find_file("${module_name}/${program}") =~ NotUndef
  $has_program = ($ensure == 'absent' or $manage_binary != 'file' or $source =~ NotUndef or $carried)
  $unsupported_reason = [$facts['kernel'] == 'Linux', $has_program] ? {
    [true, true]  => undef,
    [true, false] => "no helper for ${facts.dig('os', 'hardware')} among the module's files",
    default       => "Linux only, and this node runs ${facts['kernel']}",
  }
  $supported = $unsupported_reason =~ Undef
  $active = $supported and $ensure == 'present'
  if !$supported {
    $remedy = $facts['kernel'] ? {
      'Linux' => "build files/${program}, or set ${title}::source, or manage_binary to 'package' or 'none', or unsupported to 'ignore'",
      default => "set ${title}::unsupported to 'ignore' to have nothing done there",
    }
    case $unsupported {
      'fail': { fail("${title}: ${unsupported_reason}: ${remedy}") }
      'warn': { warning("${title}: ${unsupported_reason}: nothing is done there") }
      default: {}
    }
  }

  # If Puppet does not run as root, files that the class manages are in the home directory; others are where root has them.
  $privileged = $facts.dig('identity', 'privileged') != false
  $home = $fact['home']
  $at_home = { 'binary' => $manage_binary == 'file', 'config_file' => $manage_config }
    .filter |$_parameter, $managed| { $managed and $supported and !$privileged }
  $homeless = $at_home.filter |$parameter, $_at_home| { getvar($parameter) == undef }
  if $home !~ Common::Again::Path and !empty($homeless) {
    $missing = $homeless.keys.map |$parameter| { "${title}::${parameter}" }
    fail("${title}: cannot tell where files of this user go: set ${join($missing, ', ')}")
  }
  $default_binary = $manage_binary ? {
    'package' => '/usr/bin/again',
    default   => $at_home['binary'] ? { true => "${home}/.local/bin/again", default => '/usr/local/bin/again' },
  }
  $default_config = $at_home['config_file'] ? {
    true    => "${home}/.config/again.toml",
    default => '/etc/again.toml',
  }
  $share_path = [$at_home['binary'], $home] ? {
    [true, Common::Again::Path] => "${home}/.local/share",
    [true, Any]                 => undef,
    default                     => '/usr/local/share',
  }
  $binary_path = $binary.lest || { $default_binary }
  $config_path = $config_file.lest || { $default_config }

  # `again` reads the file in /etc without the option.
  $config_option = $config_path ? {
    '/etc/again.toml' => [],
    default           => ["--config=${config_path}"],
  }

  # A string of digits is a number of seconds; `10` keeps a leading zero from meaning octal.
  $hold = $pending['hold_before_shutdown']
  $spans = { 'jitter' => $jitter, 'max_jitter' => $max_jitter, 'window' => $window, 'hold_before_shutdown' => $hold }
  $durations = $spans.reduce({}) |$all, $pair| {
    $all + { $pair[0] => $pair[1] ? { /\A[0-9]+\z/ => Integer($pair[1], 10), default => $pair[1] } }
  }
  $settings = ($pending + $durations + {
      'max_runs'       => $max_runs,
      'max_runs_total' => $max_runs_total,
      'on_cap'         => $on_cap,
      'slots'          => $wait_for_slot,
      'command'        => $command ? { Sensitive => $command.unwrap, default => $command },
      'state_dir'      => $state_dir,
  } + $logs + $puppet_paths).filter |$_key, $value| { $value =~ NotUndef }

  # All attributes of an Exec, so that the site's `Exec { … }` defaults, which are meant for its own commands, do not apply; except the
  # command, and `noop` and `audit`, which stay the site's. `again` would treat another user or umask as those of the run. `logoutput` is
  # true, because otherwise Puppet hides the output of a successful request.
  [$provider, $path] = $facts['kernel'] ? {
    'windows' => ['windows', ['C:\\Windows\\System32', $facts['system32']].filter |$directory| { $directory }],
    default   => ['posix', undef],
  }
  $requires = $supported ? {
    true    => Class['common::again::install'],
    default => undef,
  }
  $exec = {
    'provider'    => $provider,
    'path'        => $path,
    'logoutput'   => true,
    'loglevel'    => 'notice',
    'timeout'     => 60,
    'tries'       => 1,
    'try_sleep'   => 0,
    'returns'     => 0,
    'tag'         => ['again'] + $tags,
    'require'     => $requires,
    'before'      => undef,
    'notify'      => undef,
    'subscribe'   => undef,
    'schedule'    => undef,
    'user'        => undef,
    'group'       => undef,
    'umask'       => undef,
    'cwd'         => undef,
    'environment' => undef,
    'refresh'     => undef,
    'refreshonly' => false,
    'creates'     => undef,
    'onlyif'      => undef,
    'unless'      => undef,
  }

  $file_ensure = $ensure ? {
    'present' => 'file',
    default   => 'absent',
  }
  $file_owner = $privileged ? {
    true    => 'root',
    default => undef,
  }
  $file = { 'ensure' => $file_ensure, 'owner' => $file_owner, 'group' => $file_owner, 'replace' => true }

  # Included and not contained, for the reason given in that class.
  include common::again::requests

  if $supported {
    contain common::again::install
    contain common::again::extras

    Class['common::again::install'] -> Class['common::again::extras']

    if $ensure == 'absent' {
      contain common::again::stop

      Class['common::again::stop'] -> Class['common::again::install']
    }
  }
}
