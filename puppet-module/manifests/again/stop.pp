# @summary
#   Stops pending timers before `ensure => absent` removes their records
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

  # `again status` exits with 3 if nothing is pending. With any other status, even an error, `again stop` runs.
  $pending = 'test -x "$0" || exit 1; "$0" status "$@" >/dev/null 2>&1; test $? -ne 3'

  exec { 'again-stop':
    # In a shell, because an Exec autorequires the file of its command, and this file has to be removed after the Exec.
    * => $common::again::exec + {
      'command' => ['/bin/sh', '-c', 'exec "$0" stop "$@"', $binary] + $options,
      'onlyif'  => [['/bin/sh', '-c', $pending, $binary] + $options],
      'require' => undef,
    },
  }
  # Waiters of other users and of other state directories: `again stop` does not read their records. Once the program is removed, nothing
  # could list or stop them. A package stops them itself.
  if $common::again::manage_binary == 'file' {
    $others = @(SH)
      helper=$(readlink -f "$0")
      found=1
      for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
          "$helper" | "$helper (deleted)") ;;
          *) continue ;;
        esac
        # Not those of the machine around a chroot, nor of a container.
        [ "$process/root/." -ef / ] || continue
        case $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") in
          "again: timer '"*) ;;
          *) continue ;;
        esac
        found=0
        [ "$1" = find ] || kill -TERM "${process#/proc/}" 2>/dev/null
      done
      exit $found
      | SH

    exec { 'again-stop-others':
      * => $common::again::exec + {
        'command' => ['/bin/sh', '-c', $others, $binary, 'end'],
        'onlyif'  => [['/bin/sh', '-c', $others, $binary, 'find']],
        'require' => Exec['again-stop'],
      },
    }
  }
}
