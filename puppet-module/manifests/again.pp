# @summary
#   Lets a manifest ask for another Puppet run: `notify => Exec['again']`
#
# Installs the helper `again`, writes its settings, and declares `Exec['again']`. A resource that changes and notifies this Exec gets one
# more run of the very same Puppet command once the present run has ended. However many resources notify it in a run, one run follows.
# The Exec's line in the report, and `again status`, say what is asked for, when it is due and how to stop it.
#
# Five things to know:
#
# - Puppet skips a refresh if **one** of the notifying resources failed. Where the rerun is wanted in spite of a failure, or because of
#   it, set `on_failure`, or use `common::again::until`.
# - Under `--tags` Puppet evaluates only what carries one of the tags. The Execs of this module all carry the tag `again`, those of the
#   class that first included or declared them, and what `tags` adds: `puppet agent -t --tags profile::db,again` asks as usual, a run
#   without a matching tag cannot ask. The rerun has the same `--tags`.
# - Under noop the Execs ask for nothing.
# - The Execs are not contained in this class, and wait for the helper and its settings only. `require => Class['common::again']`,
#   `Class['common::again'] -> …` and `contain common::again` in an earlier profile order the installation, and any resource that comes
#   after it may notify the Exec. The README says which orders are a dependency cycle all the same, and what to do then.
# - Set parameters in Hiera. A declaration with parameters (`class { 'common::again': … }`) has to be evaluated before anything includes the
#   class, and the defines of this module do.
#
# @param ensure
#   `absent` stops what is pending and then removes what this class has installed, including state and logs. If that includes the helper,
#   waiters of other users are ended too. The Execs stay in the catalog, so that manifests which notify them still compile, but ask for
#   nothing.
#
# @param unsupported
#   What to do on a node that is not supported: on a kernel other than Linux, on an architecture for which there is no helper, and for
#   `common::again::fleet` on a node without systemd too. `fail` fails the catalog; `warn` and `ignore` let a profile that is shared with
#   such nodes compile there: the Execs are in the catalog, ask for nothing and say so, and nothing is installed. `warn` logs a warning
#   where the catalog is compiled.
#
# @param manage_binary
#   Where the helper comes from: `file`, from this module's files for the node's architecture, or from `source`; `package`, from a package;
#   `none`, from elsewhere. A new value leaves behind what the former one installed; `ensure => absent` in between removes it.
#
# @param source
#   Where the helper is fetched from, with `manage_binary => file`, instead of this module's files: anything that `source` of a File takes,
#   such as `puppet:///modules/profile/again` or an https address. This also serves architectures which the module's files lack.
#
# @param checksum
#   The SHA-256 of the helper. A file with another checksum is not installed, and a helper that is in place is fetched anew only if its
#   checksum differs. A source on the web needs it.
#
# @param binary
#   Path of the helper. By default /usr/local/bin/again, /usr/bin/again with `manage_binary => package`, and ~/.local/bin/again with
#   `manage_binary => file` where Puppet does not run as root.
#
# @param package_name
#   Name of the package, with `manage_binary => package`.
#
# @param package_ensure
#   `ensure` of the package.
#
# @param manage_config
#   Whether to write the configuration file. Without it the settings below have no effect.
#
# @param config_file
#   Path of the configuration file. By default /etc/again.toml, or ~/.config/again.toml where Puppet does not run as root and the file is
#   managed. `again` on the command line reads /etc/again.toml; another path needs `AGAIN_CONFIG` there. The fact needs `AGAIN_CONFIG` in
#   the environment of Puppet, unless the path is the default.
#
# @param manage_docs
#   Whether to install the manual pages again(8) and again.toml(5), and the completions for bash, zsh and fish, as far as the module's
#   files have them. They go to /usr/local/share, or to ~/.local/share where Puppet does not run as root. A package brings its own: this
#   applies to `manage_binary => file` only.
#
# @param manage_boot_unit
#   Whether to install and enable again-resume.service, which gives pending timers new waiters after a boot, and again-pending.path, which
#   within a minute gives a new waiter to a timer that has lost its own. By default where systemd runs and Puppet runs as root; `true` is
#   for images that are built without systemd running.
#
# @param on_failure
#   Whether a run in which resources failed asks for another one: with `true` as soon as it has ended; with a delta, as in
#   `common::again::delta`, that much later. For nodes that are being set up, and for failures that pass: a mirror that does not answer, a
#   peer that is not there yet. A failure that stays costs `max_runs` runs per window; then the report shows the cap. The timer is named
#   `again-on-failure`. The run does not ask under noop, if it was told to stop, or if only requests of this module have failed. A catalog
#   that does not compile, or that has a dependency cycle, cannot ask, because no resource is evaluated.
#
# @param tags
#   More tags for the Execs of this module, so that runs with `--tags` reach them.
#
# @param deltas
#   Declares a `common::again::delta` for each key, its title, with the parameters of its value. In Hiera the hashes of all levels are
#   merged, as those of `untils` are.
#
# @param untils
#   Declares a `common::again::until` for each key, as `deltas` does.
#
# @param jitter
#   Setting: the random part of the delay is at most this. By default a quarter of the delta and at least 2 seconds. `0` means none.
#
# @param max_jitter
#   Setting: the bound up to which the jitter grows in a chain of reruns that does not settle. The helper's default is 300 seconds.
#
# @param max_runs
#   Setting: at most this many reruns in a window. The helper's default is 10.
#
# @param max_runs_total
#   Setting: at most this many reruns of all commands of a user together in a window. The helper's default is three times `max_runs`.
#
# @param window
#   Setting: the length of the window. The helper's default is one hour.
#
# @param on_cap
#   Setting: what a request does once the cap is reached. The helper's default is `fail`.
#
# @param wait_for_slot
#   Setting `slots`: whether a rerun of Puppet waits for a slot of the fleet before it starts, as `again fleet slot` does: the settings of
#   `common::again::fleet` name the group and how many of its nodes run at a time. The helper's default is false.
#
# @param command
#   Setting: the command to run instead of the one that Puppet was started with, for sites that run Puppet through a wrapper. Where it is
#   set, no report shows the content of the configuration file. Where it is Sensitive, only its owner can read the file.
#
# @param state_dir
#   Setting: where records are kept. `ensure => absent` removes this directory only if the last part of its path has `again` in it.
#
# @param pending
#   Settings of requests that are pending, by their names in again.toml(5): `save_environment`, whether the environment of the run is kept
#   on disk, in a file that only its owner can read, so that the request has it after a reboot (by default true); `scope`, `auto` to move
#   the waiter of a request of root's out of the systemd service it was made in, or `never`; `container`, `auto` to refuse a request in a
#   container that may end with its run, or `stays` for a container that lives on; `hold_before_shutdown`, how long before a shutdown a
#   request that is due is held (by default 15 minutes; 0 holds nothing); `stuck`, what to do about a run that outlives its time and is in
#   the way of a request: `report`, the default, shows it, `end` ends it.
#
# @param logs
#   Settings of the output of reruns, by their names in again.toml(5): `log_dir`, where it is kept; `keep_logs`, how many logs to keep of
#   each command (by default 20); `max_log_size`, how large a log may be once its rerun has ended, of a larger one beginning and end are
#   kept (by default 16M); `max_logs_size`, how large all together may be (by default 256M). `ensure => absent` removes `log_dir` as it
#   does `state_dir`.
#
# @param puppet_paths
#   Settings: the files of the agent, by the names of Puppet's settings: `agent_catalog_run_lockfile`, `agent_disabled_lockfile`,
#   `lastrunfile` and `pidfile`. By default what the fact says of this very run.
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
  # The same module under its other name, which would manage the same files.
  $other = (['again', 'common::again'] - $title)[0] # both names
  if defined(Class["${other}::requests"]) {
    fail("${title} and ${other} are one module under two names, and this catalog has both: use one name everywhere, also in Hiera")
  }

  # Missing in a first run without pluginsync.
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

  # What a user's own Puppet installs goes into the home directory; what it does not is where root's is.
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

  # The helper looks in /etc by itself.
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

  # All that an Exec can have, but for the command and what stays the site's (`noop`, `audit`): its `Exec { … }` defaults are meant for its
  # own commands. Another user or umask would be taken for the run's; `logoutput`, because otherwise Puppet hides the line of a request
  # that succeeded.
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

  # Not contained: see there.
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
