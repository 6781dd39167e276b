# @summary
#   Makes this node a candidate for a lock, which one of some nodes holds at a time: the master of a database, say
#
# Declare it on every candidate, with the same `candidates`. The service of one of them holds the lock, from one run to the next and over
# restarts and upgrades, until it is away for a minute, or until an operator moves it with `again-fleet move`. Each change of holder has
# Puppet run on all candidates. The fact `again_fleet` tells in `locks` of each: `holder`, which is undef unless it is certain; `is_mine`;
# `token`, which grows with each change of holder; `since`; and `why` the holder is not certain.
#
# A lease is no fence. A run takes longer than the moment in which the fact was true, and an agent that goes on with a cached catalog
# (`usecacheonfailure`) believes what was true when that was compiled. What must never be done by two has to compare the token, at the place
# where it is done: whatever has seen a higher one refuses a lower one. See doc/fleet.md and examples/lock.pp.
#
# Locks need etcd.
#
# @param ensure
#   `absent` gives the lock up, and takes it off this node.
#
# @param candidates
#   The nodes that may hold it, by certname; this one among them.
#
# @param prefer
#   Some of them, in the order in which they try when nobody holds it, two seconds apart; the others come last. Whoever holds it keeps it.
#
# @param lock
#   Its name: at most 64 letters, digits, `_`, `.` and `-`. By default the title.
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
    # By these the fact asks.
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
