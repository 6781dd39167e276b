# @summary
#   Stops what is pending, before `ensure => absent` removes the records by which it is found
#
# @example
#   class { 'common::again':
#     ensure => absent,
#   }
#
# @api private
class common::again::stop {
  if $caller_module_name != $module_name {
    fail("${title} is private: include common::again")
  }

  $binary = $common::again::binary_path
  $options = $common::again::config_option

  # `again status` ends with 3 if nothing is pending; anything else, an error too, is a reason to stop.
  $pending = 'test -x "$0" || exit 1; "$0" status "$@" >/dev/null 2>&1; test $? -ne 3'

  exec { 'again-stop':
    # Through a shell, because an Exec wants the file that is its command in place first, and this one has to be removed afterwards.
    command     => ['/bin/sh', '-c', 'exec "$0" stop "$@"', $binary] + $options,
    onlyif      => [['/bin/sh', '-c', $pending, $binary] + $options],
    refreshonly => false,
    *           => $common::again::exec - ['require'],
  }
}
