# @summary
#   The paths of the files with which a node identifies itself and verifies others
#
# The default for each is Puppet's own file, from the fact `again_fleet`. If Puppet's own file does not exist, the catalog fails.
#
# @param names
#   Names of the required files: `cert`, `key`, `ca`, `crl`.
#
# @param set
#   Value of the parameter `certificates` of the class.
#
# @param class
#   Name of the class, for messages.
#
# @return [Hash[String[1], Common::Again::Absolutepath]]
#   The path of each file, by its name.
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
        # The backend class needs the list in any case; it has no `revocation`.
        'crl'   => $class =~ /fleet\z/ ? {
          true    => "copy it from the CA, or set revocation in ${class}::certificates to 'off'",
          default => 'copy it from the CA',
        },
        default => join([
          "run the agent, which gets it from a Puppet server; without a server 'again-fleet ca' makes it,",
          'see "Without a Puppet server" in doc/fleet/quick-start.md',
        ], ' '),
      }
      fail("${class}: ${file} is not there: ${cause}; or ${remedy}")
    }
    $known + { $name => $file }
  }
}
