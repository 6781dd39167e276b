# @summary
#   Reacts to what runs of Puppet do on other nodes: runs Puppet here, or calls a program
#
# A rule says which events: those of a `resource`, of a kind of `change`, of a `class`, from nodes that tell certain facts; all that it says
# has to be met. Puppet runs here once for all events of a run that have come by then, as if that run had fired a `trigger` at this node:
# after a run that is under way, below the cap of this node, and with the hops counted. Only nodes that `accept` of the class
# `common::again::fleet` names are listened to, and they tell what their runs do if they set its `events`.
#
# With `command` a program is called in the place of Puppet, as root, once for each event, with the event as one object of JSON on its
# standard input: `version`, `id`, `rule`, `node`, `run`, `environment`, `event` and `origins`. The calls of one rule are made one by one,
# and wait on disk until they are. A call that was interrupted is made again, with the same `id`. What the program writes is in the journal
# of `again-fleet-calls.service`, and how it ended.
#
# A rule that leaves the manifest leaves the node.
#
# @param ensure
#   `absent` takes the rule away.
#
# @param resource
#   Whose events: a reference such as `Service[httpd]`. `*` stands for any characters, or none: `File[/etc/haproxy/*]`, `Service[*]`.
#
# @param change
#   What happened to it: `started`, `stopped`, `changed`, `failed` or `refreshed`, or several of these. By default any.
#
# @param class
#   A class that the resource is in, by its tags, or that is in the last catalog of its node. Puppet makes tags of the classes that a
#   resource is in and of those that declare them, but also of defines and titles, and of the parts of all these names.
#
# @param where
#   What the node tells of itself, as the type `trigger` has it: a hash of facts and their values, all of which have to hold; or strings
#   with one of `=`, `!=`, `<`, `>`, `=~`, such as `'uptime>10'`.
#
# @param environment
#   The environment of the run in which it happened.
#
# @param own
#   Whether events of this node count too.
#
# @param delta
#   How long Puppet waits at least before it runs here: seconds, or a string with a unit, such as `2m`; a day at most.
#   Where many nodes have the rule, `fqdn_rand(60)` spreads their runs over a minute.
#
# @param command
#   A program that is called instead: an array of its absolute path and its arguments, or a string without quotes, which is split at its
#   spaces. No shell is between. If it is Sensitive, no report shows the rule, and only root and the service can read its file.
#
# @param timeout
#   How long the program may take: from a second to an hour. Then it is killed, with what it has started. The default is 60 seconds.
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
    # A value that begins with `~` is not one to search for.
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
    # To be read by people; the hash keeps apart what looks the same.
    $readable = $title.downcase.regsubst(/[^a-z0-9]+/, '-', 'G')[0, 40].regsubst(/\A-|-\z/, '', 'G')
    $hash = sha256($title)[0, 12]
    $file_ensure = $ensure ? {
      'present' => 'file',
      default   => 'absent',
    }
    $text = join(['# Written by Puppet (common::again::on): changes made here do not last.', "\n"] + $lines)
    # A command may hold a password.
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
