# @summary
#   The paths of the files by which a node proves who it is and verifies others
#
# What is not set is one of Puppet's own files, as the fact `again_fleet` tells.
#
# @param set
#   The parameters `cert`, `key`, `ca` and `crl` of a class, as far as they are needed.
#
# @param class
#   The name of that class, for messages.
#
# @return [Hash[String[1], Common::Again::Absolutepath]]
#   The path of each.
#
# @example
#   common::again::credentials({ 'cert' => '/etc/ssl/node.pem', 'key' => undef }, $title)
#
# @api private
function common::again::credentials(Hash[String[1], Optional[String[1]]] $set, String[1] $class) >> Hash[String[1], Common::Again::Absolutepath] {
  $paths = $facts.dig('again_fleet', 'paths').lest || { {} }
  $missing = $facts.dig('again_fleet', 'missing').lest || { [] }
  $set.reduce({}) |$known, $pair| {
    [$name, $path] = $pair
    $file = $path.lest || { $paths[$name] }
    if $file !~ Common::Again::Absolutepath {
      fail("${class}: the fact again_fleet does not tell Puppet's ${name}: set ${class}::${name}")
    }
    if $path == undef and $name in $missing {
      $remedy = $name ? {
        # Engines always need it.
        'crl'   => $class =~ /fleet\z/ ? { true => "copy it from the CA, or set ${class}::revocation to 'off'", default => 'copy it from the CA' },
        default => "run the agent, which gets it from a Puppet server; without a server 'again-fleet ca' makes it, see \"Without a Puppet server\" in doc/fleet.md",
      }
      fail("${class}: ${file} is not there: ${remedy}; or set ${class}::${name}")
    }
    $known + { $name => $file }
  }
}
