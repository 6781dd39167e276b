# @summary
#   The paths of the files by which a node proves who it is and verifies others
#
# What is not set is one of Puppet's own files, as the fact `again_fleet` tells.
#
# @param names
#   Those that are needed, of `cert`, `key`, `ca` and `crl`.
#
# @param set
#   The parameter `certificates` of a class.
#
# @param class
#   The name of that class, for messages.
#
# @return [Hash[String[1], Common::Again::Absolutepath]]
#   The path of each.
#
# @example
#   common::again::credentials(['cert', 'key'], { 'cert' => '/etc/ssl/node.pem' }, $title)
#
# @api private
function common::again::credentials(
  Array[String[1]] $names,
  Hash[String[1], String[1]] $set,
  String[1] $class,
) >> Hash[String[1], Common::Again::Absolutepath] {
  $paths = $facts.dig('again_fleet', 'paths').lest || { {} }
  $missing = $facts.dig('again_fleet', 'missing').lest || { [] }
  $names.reduce({}) |$known, $name| {
    $file = $set[$name].lest || { $paths[$name] }
    $remedy = "set ${name} in ${class}::certificates"
    if $file !~ Common::Again::Absolutepath {
      fail("${class}: the fact again_fleet does not tell Puppet's ${name}: ${remedy}")
    }
    if $set[$name] == undef and $name in $missing {
      $cause = $name ? {
        # Backends always need it.
        'crl'   => $class =~ /fleet\z/ ? { true => "copy it from the CA, or set revocation in ${class}::certificates to 'off'", default => 'copy it from the CA' },
        default => "run the agent, which gets it from a Puppet server; without a server 'again-fleet ca' makes it, see \"Without a Puppet server\" in doc/fleet.md",
      }
      fail("${class}: ${file} is not there: ${cause}; or ${remedy}")
    }
    $known + { $name => $file }
  }
}
