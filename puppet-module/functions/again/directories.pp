# @summary
#   The attributes of an Exec that creates directories which other modules may manage too
#
# File resources could be duplicates of those of another module.
#
# @param paths
#   The directories.
#
# @return [Hash[String[1], Any]]
#   All attributes.
#
# @example
#   common::again::directories('/usr/local/share/man/man8')
#
# @api private
function common::again::directories(String[1] *$paths) >> Hash[String[1], Any] {
  $common::again::exec + {
    'command'   => ['/bin/sh', '-c', 'umask 022; mkdir -p -- "$@"', 'sh'] + $paths,
    'unless'    => [['/bin/sh', '-c', 'for d; do test -d "$d" || exit 1; done', 'sh'] + $paths],
    'logoutput' => 'on_failure',
    'require'   => undef,
  }
}
