# @summary
#   What a request cannot do without: the helper and its configuration
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
    $architecture = $facts['os']['hardware']
    $path = "${architecture}/again"
    if $present and ($facts['kernel'] != 'Linux' or !find_file("${module_name}/${path}")) {
      $remedy = "build files/${path}, or set manage_binary to 'package' or 'none'"
      fail("common::again: no helper for ${facts['kernel']} on ${architecture}: ${remedy}")
    }
    $source = $present ? {
      true    => "puppet:///modules/${module_name}/${path}",
      default => undef,
    }

    file { $binary:
      source => $source,
      mode   => '0755',
      backup => false,
      *      => $common::again::file,
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

  if $common::again::manage_config {
    $content = $present ? {
      true    => epp("${module_name}/again.toml.epp", { 'binary' => $binary, 'settings' => $common::again::settings }),
      default => undef,
    }

    file { $common::again::config_file:
      content => $content,
      mode    => '0644',
      *       => $common::again::file,
    }
  }
}
