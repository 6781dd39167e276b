# @summary
#   Makes this node a candidate for a lock, which only one node holds at a time, such as the primary of a database
#
# Declare it on every candidate, with the same `candidates`. The service of one of them holds the lock, between runs and across restarts
# and upgrades, until it is disconnected for a minute, or until an operator moves the lock with `again-fleet move`. Each change of holder
# runs Puppet on all candidates. The fact `again_fleet` has an entry for each lock in `locks`:
#
# - `holder`, undef unless it is certain
# - `is_mine`, whether this node holds the lock
# - `token`, a number that grows with each change of holder
# - `since`, the time from which the holder has held it
# - `why`, the reason if the holder is not certain
#
# A lock is only a lease: it cannot stop a node that has just lost it. The holder may change during a run, and an agent that applies a
# cached catalog (`usecacheonfailure`) uses the holder at the time of compilation. An action that two nodes must never take has to check
# the token where it takes effect, and to refuse a token that is lower than one seen before. See doc/fleet/guide.md and examples/lock.pp.
#
# Locks need etcd.
#
# @param ensure
#   `absent` releases the lock and removes it from this node.
#
# @param candidates
#   Certnames of the nodes that may hold the lock, including this one.
#
# @param prefer
#   Preferred candidates: when nobody holds the lock, they try in this order, two seconds apart; the others come last. A holder keeps the
#   lock even if a preferred candidate connects.
#
# @param lock
#   Name of the lock: at most 64 letters, digits, `_`, `.` and `-`. By default the title.
#
# @example A database with one primary
#   common::again::lock { 'db-master':
#     candidates => ['db1.example.com', 'db2.example.com', 'db3.example.com'],
#     prefer     => ['db1.example.com'],
#   }
#
#   if $facts.dig('again_fleet', 'locks', 'db-master', 'is_mine') {
#     include profile::db::primary
#   }
#
# @api public
define common::again::lock (
  Array[Pattern[/\A[^[:cntrl:]\/*A-Z]{1,253}\z/], 1, 64] $candidates,
  Enum['present', 'absent'] $ensure = 'present',
  Array[Pattern[/\A[^[:cntrl:]\/*A-Z]{1,253}\z/], 0, 64] $prefer = [],
  Pattern[/\A[\w.-]{1,64}\z/] $lock = $title,
) {
  include common::again::fleet

  $this = "common::again::lock: '${title}'"
  $certname = $common::again::fleet::certname.lest || { $facts.dig('again_fleet', 'certname').lest || { $trusted['certname'] } }
  if $common::again::fleet::active {
    if $common::again::fleet::backend != 'etcd' {
      fail("${this}: locks need etcd: on NATS a key that is renewed loses its place")
    }
    if $ensure == 'present' and !($certname in $candidates) {
      fail("${this}: the candidates do not name this node, ${certname}: add it, or declare the lock on the candidates only")
    }
    $strange = $prefer - $candidates
    unless empty($strange) {
      fail("${this}: prefer names ${join($strange, ', ')}, which the candidates do not")
    }

    $values = {
      'name'       => $lock,
      'candidates' => $candidates.unique,
      'prefer'     => empty($prefer) ? { true => undef, default => $prefer.unique },
    }
    $lines = $values
      .filter |$_key, $value| { $value =~ NotUndef }
      .map |$key, $value| { "${key} = ${common::again::toml($value)}\n" }
    # The fact reads the path of the program from this comment.
    $head = [
      'Written by Puppet (common::again::lock): changes made here do not last.',
      "binary: ${common::again::fleet::binary_path}",
    ]
    $file_ensure = $ensure ? {
      'present' => 'file',
      default   => 'absent',
    }

    file { "${common::again::fleet::locks_dir}/${lock}.toml":
      ensure  => $file_ensure,
      owner   => 'root',
      group   => 'root',
      mode    => '0644',
      backup  => false,
      content => join($head.map |$line| { "# ${line}\n" } + $lines),
      notify  => Exec['again-fleet-rules'],
    }
  }
}
