# @summary
#   Installs the files that a request needs: the program `again` and its configuration
#
# @example
#   include common::again
#
# @api private
class common::again::install {
  if $caller_module_name != $module_name {
    fail("${title} is private: include common::again")
  }

  $binary = $common::again::binary_path
  $present = $common::again::ensure == 'present'

  if $common::again::manage_binary == 'file' {
    if $common::again::source =~ Pattern[/\Ahttps?:/] and $common::again::checksum == undef {
      fail('common::again: a helper from the web needs common::again::checksum, its SHA-256')
    }
    $content = $present ? {
      true    => { 'source' => $common::again::source.lest || { "puppet:///modules/${module_name}/${common::again::program}" } },
      default => {},
    }
    $checked = $common::again::checksum ? {
      undef   => {},
      default => { 'checksum' => 'sha256', 'checksum_value' => $common::again::checksum },
    }

    file { $binary:
      mode   => '0755',
      backup => false,
      *      => $common::again::file + $content + $checked,
    }
  }

  if $common::again::manage_binary == 'package' {
    $package_ensure = $present ? {
      true    => $common::again::package_ensure,
      default => 'absent',
    }

    package { $common::again::package_name:
      ensure => $package_ensure,
    }
  }

  # The directories exist in /usr/local and /etc, but not necessarily in the home directory of a user.
  $managed = [
    [$common::again::manage_binary == 'file', $binary],
    [$common::again::manage_config, $common::again::config_path],
  ].filter |$pair| { $pair[0] }.map |$pair| { $pair[1] }
  if $present and !$common::again::privileged and !empty($managed) {
    $directories = $managed.map |$file| { regsubst($file, '/[^/]+\z', '') }.unique

    exec { 'again-home':
      * => common::again::directories(*$directories) + { 'before' => File[$managed] },
    }
  }

  if $common::again::manage_config {
    $settings = $present ? {
      true    => epp("${module_name}/again.toml.epp", { 'binary' => $binary, 'settings' => $common::again::settings }),
      default => undef,
    }

    # A command may contain a password.
    [$mode, $text] = $common::again::command ? {
      Sensitive => ['0600', $present ? { true => Sensitive($settings), default => undef }],
      default   => ['0644', $settings],
    }

    file { $common::again::config_path:
      content   => $text,
      mode      => $mode,
      show_diff => $common::again::command == undef,
      *         => $common::again::file,
    }
  }
}
