# @summary
#   Manages the files that a request does not need: manual pages, completions, systemd units; removes state and logs
#
# Separate from `common::again::install`, so that with a read-only /usr/local/share the manual pages fail but not the rerun.
#
# @example
#   include common::again
#
# @api private
class common::again::extras {
  if $caller_module_name != $module_name {
    fail("${title} is private: include common::again")
  }

  $present = $common::again::ensure == 'present'
  $share = $common::again::share_path
  $units = '/etc/systemd/system'

  # A package contains its own manual pages and completions.
  $docs = ($common::again::manage_binary == 'file' and $common::again::manage_docs and $share =~ NotUndef)
  $boot_unit = $common::again::manage_boot_unit ? {
    undef   => $common::again::privileged and (!$present or $common::again::fact['systemd'] == true),
    default => $common::again::manage_boot_unit,
  }

  # File of the module, directory on the node, name on the node.
  $carried = [
    ['man/again.8', "${share}/man/man8", 'again.8'],
    ['man/again-json.5', "${share}/man/man5", 'again-json.5'],
    ['man/again.toml.5', "${share}/man/man5", 'again.toml.5'],
    ['completions/again.bash', "${share}/bash-completion/completions", 'again'],
    ['completions/_again', "${share}/zsh/site-functions", '_again'],
    ['completions/again.fish', "${share}/fish/vendor_completions.d", 'again.fish'],
  ].filter |$entry| { $docs and (!$present or find_file("${module_name}/${entry[0]}")) }

  $wants = "${units}/multi-user.target.wants"
  $links = ['again-resume.service', 'again-pending.path']
  $files = $links + ['again-pending.service']

  $directories = $carried.map |$entry| { $entry[1] } + [$wants].filter |$_wants| { $boot_unit }
  $targets = $carried.map |$entry| { "${entry[1]}/${entry[2]}" } + ($files.map |$file| { "${units}/${file}" } +
  $links.map |$link| { "${wants}/${link}" }).filter |$_path| { $boot_unit }

  if $present and !empty($directories) {
    exec { 'again-directories':
      * => common::again::directories(*$directories) + { 'before' => File[$targets] },
    }
  }

  $carried.each |$entry| {
    $source = $present ? {
      true    => "puppet:///modules/${module_name}/${entry[0]}",
      default => undef,
    }

    file { "${entry[1]}/${entry[2]}":
      source => $source,
      mode   => '0644',
      *      => $common::again::file,
    }
  }

  if $boot_unit {
    $variables = { 'binary' => $common::again::binary_path, 'options' => $common::again::config_option }
    $watched = { 'state_dir' => $common::again::state_dir.lest || { '/var/lib/again' } }
    $enabled = $present ? {
      true    => 'link',
      default => 'absent',
    }

    $files.each |$file| {
      $content = $present ? {
        true    => epp("${module_name}/${file}.epp", $file ? { /path\z/ => $watched, default => $variables }),
        default => undef,
      }

      file { "${units}/${file}":
        content => $content,
        mode    => '0644',
        *       => $common::again::file,
      }
    }

    # The links that `systemctl enable` creates; this also works in an image where systemd does not run yet.
    $links.each |$link| {
      file { "${wants}/${link}":
        ensure  => $enabled,
        target  => "${units}/${link}",
        require => File["${units}/${link}"],
      }
    }

    # Applies the changed units if systemd runs. According to systemctl(1), status 5 means that a unit is not loaded: a package has already
    # stopped its units when it was removed.
    $verb = $present ? {
      true    => 'systemctl restart again-pending.path',
      default => '{ systemctl stop again-pending.path again-pending.service || [ $? = 5 ]; }',
    }
    exec { 'again-pending':
      * => $common::again::exec + {
        'command'     => ['/bin/sh', '-c', "[ ! -d /run/systemd/system ] || { systemctl daemon-reload && ${verb}; }"],
        'logoutput'   => 'on_failure',
        'refreshonly' => true,
        'require'     => undef,
        'subscribe'   => File["${units}/again-pending.path", "${units}/again-pending.service"],
      },
    }
  }

  unless $present {
    # Only directories with `again` in their last part: with `state_dir => '/srv'`, /srv must not be removed.
    $defaults = $common::again::privileged ? {
      true    => ['/var/lib/again', '/var/log/again'],
      default => ["${common::again::home}/.local/state/again", "${common::again::home}/.local/state/again"],
    }
    [
      [$common::again::state_dir, $defaults[0]],
      [$common::again::logs['log_dir'], $defaults[1]],
    ].map |$pair| { $pair[0].lest || { $pair[1] } }
      .filter |$path| { $path =~ /again[^\/]*\z/ }
      .unique
      .each |$path| {
        # No copies in the filebucket: records may contain secrets.
        file { $path:
          force  => true,
          backup => false,
          *      => $common::again::file,
        }
      }
  }
}
