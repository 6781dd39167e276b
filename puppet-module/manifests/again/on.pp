# @summary
#   Reacts to events in Puppet runs on other nodes: runs Puppet here, or calls a program
#
# A rule selects events by `resource`, kind of `change` and `class`, and by the facts of the node; an event has to match all conditions that
# are set. Puppet runs here once for all matching events of a run that have arrived by then, as if that run had sent a `trigger` to this
# node: after a run that is in progress, within the cap of this node, and as one more hop. Rules only see events of nodes that `accept`
# of the class `common::again::fleet` lists. Those nodes publish events if they set `events` of that class.
#
# With `command` a program runs instead of Puppet, as root, once for each event. It reads the event from standard input as one JSON object:
# `version`, `id`, `rule`, `node`, `run`, `environment`, `event` and `origins`. The calls of a rule run one after the other, and are stored
# on disk until then. An interrupted call is repeated with the same `id`. The journal of `again-fleet-calls.service` has the output of the
# program and how it ended.
#
# A rule that is removed from the manifest is removed from the node.
#
# @param ensure
#   `absent` removes the rule.
#
# @param resource
#   Resource of the event: a reference such as `Service[httpd]`. `*` stands for any characters, or none: `File[/etc/haproxy/*]`,
#   `Service[*]`.
#
# @param change
#   Kind of change: `started`, `stopped`, `changed`, `failed` or `refreshed`, or an array of these. By default any.
#
# @param class
#   Class that contains the resource, according to its tags, or that is in the last catalog of its node. Puppet tags a resource with the
#   classes that contain it and with those that declare them, but also with defines and titles, and with the parts of all these names.
#
# @param where
#   Conditions on the facts that the node publishes, as in the type `trigger`: a hash of facts and their values, or strings with one of
#   `=`, `!=`, `<`, `>`, `=~`, such as `'uptime>10'`. All of them have to match.
#
# @param environment
#   Environment of the run that caused the event.
#
# @param own
#   Whether the rule matches events of this node too.
#
# @param delta
#   Minimum delay before Puppet runs here: seconds, or a string with a unit, such as `2m`; at most a day. If many nodes have the rule,
#   `fqdn_rand(60)` spreads their runs over a minute.
#
# @param command
#   Program to run instead of Puppet, without a shell: an array of its absolute path and its arguments, or a string without quotes, which is
#   split at spaces. If it is Sensitive, no report shows the rule, and only root and the service can read its file.
#
# @param timeout
#   Timeout of the program, from a second to an hour; 60 seconds by default. Then the program is killed with all processes that it started.
#
# @example A load balancer runs when a web server came up
#   common::again::on { 'a web server came up':
#     resource => 'Service[httpd]',
#     class    => 'roles::frontend_web',
#     change   => 'started',
#   }
#
# @example A program hears of each failure in production
#   common::again::on { 'something failed':
#     change      => 'failed',
#     environment => 'production',
#     command     => ['/usr/local/bin/tell', '--channel', 'ops'],
#     timeout     => '10s',
#   }
#
# @api public
define common::again::on (
  Enum['present', 'absent'] $ensure = 'present',
  Optional[Pattern[/\A[A-Za-z*][\w:*]*\[[^[:cntrl:]]{1,500}\]\z/]] $resource = undef,
  Optional[Variant[Common::Again::Change, Array[Common::Again::Change, 1]]] $change = undef,
  Optional[Pattern[/\A(::)?[A-Za-z]\w*(::[A-Za-z]\w*)*\z/]] $class = undef,
  Optional[Common::Again::Where] $where = undef,
  Optional[Pattern[/\A\w+\z/]] $environment = undef,
  Boolean $own = false,
  Optional[Common::Again::Duration] $delta = undef,
  Optional[Variant[
      Tuple[Common::Again::Absolutepath, Pattern[/\A[^\x00]+\z/], 1, default],
      Pattern[/\A\/[\w.,:=@%+\/-]+( +[\w.,:=@%+\/-]+)*\z/],
      Sensitive[Variant[
          Tuple[Common::Again::Absolutepath, Pattern[/\A[^\x00]+\z/], 1, default],
          Pattern[/\A\/[\w.,:=@%+\/-]+( +[\w.,:=@%+\/-]+)*\z/],
      ]],
  ]] $command = undef,
  Optional[Common::Again::Duration] $timeout = undef,
) {
  include common::again::fleet

  $this = "common::again::on: '${title}'"
  if $title !~ /\A[^[:cntrl:]]{1,64}\z/ {
    fail("${this}: this cannot be the name of a rule: choose a title of at most 64 characters, none of them a control character")
  }
  if [$resource, $change, $class].all |$one| { $one =~ Undef } {
    fail("${this}: this would be met by every event of every node: set resource, change or class")
  }
  if $delta =~ NotUndef and $command =~ NotUndef {
    fail("${this}: a program is called at once: set delta, with which Puppet runs, or command, but not both")
  }
  if $timeout =~ NotUndef and $command =~ Undef {
    fail("${this}: timeout is that of a program: set command too, or leave timeout out")
  }

  # A string of digits is a number of seconds; `10` keeps a leading zero from meaning octal.
  $durations = { 'delta' => [$delta, 0, 86400], 'timeout' => [$timeout, 1, 3600] }.reduce({}) |$all, $pair| {
    [$key, [$value, $least, $most]] = $pair
    if $value =~ Undef {
      $all
    } else {
      $parts = String($value).match(/\A([0-9]+)([smhd]?)\z/)
      $seconds = Integer($parts[1], 10) * { '' => 1, 's' => 1, 'm' => 60, 'h' => 3600, 'd' => 86400 }[$parts[2]]
      if $seconds < $least or $seconds > $most {
        fail("${this}: ${key} is ${value}: choose one from ${least} to ${most} seconds")
      }
      $all + { $key => $seconds }
    }
  }
  $plain = $command ? {
    Sensitive => $command.unwrap,
    default   => $command,
  }
  $words = $plain ? {
    String  => split($plain, / +/),
    default => $plain,
  }
  $conditions = $where ? {
    # The space keeps a value that begins with `~` from being read as a regular expression.
    Hash    => $where.map |$fact, $wanted| { regsubst("${fact}=${wanted}", /\A([^=]*=)~/, '\1 ~') },
    default => $where,
  }
  $rule = {
    'name'        => $title,
    'resource'    => $resource,
    'change'      => $change ? { Undef => undef, default => [$change].flatten.unique },
    'class'       => $class ? { Undef => undef, default => $class.regsubst(/\A::/, '').downcase },
    'where'       => $conditions,
    'environment' => $environment,
    'own'         => $own ? { true => true, default => undef },
    'command'     => $words,
  } + $durations
  $lines = $rule
    .filter |$_key, $value| { $value =~ NotUndef }
    .map |$key, $value| { "${key} = ${common::again::toml($value)}\n" }

  if $common::again::fleet::active {
    # A readable part of the title; the hash makes the file name unique.
    $readable = $title.downcase.regsubst(/[^a-z0-9]+/, '-', 'G')[0, 40].regsubst(/\A-|-\z/, '', 'G')
    $hash = sha256($title)[0, 12]
    $file_ensure = $ensure ? {
      'present' => 'file',
      default   => 'absent',
    }
    $text = join(['# Written by Puppet (common::again::on): changes made here do not last.', "\n"] + $lines)
    # A command may contain a password.
    $content = $command ? {
      Sensitive => { 'content' => Sensitive($text), 'group' => $common::again::fleet::user, 'mode' => '0640' },
      default   => { 'content' => $text, 'group' => 'root', 'mode' => '0644' },
    }

    file { "${common::again::fleet::rules_dir}/${readable}-${hash}.toml":
      ensure => $file_ensure,
      owner  => 'root',
      backup => false,
      notify => Exec['again-fleet-rules'],
      *      => $content,
    }
  }
}
