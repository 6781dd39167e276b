# @summary
#   `Exec['again']`, the deltas and untils of the class, and the request that `on_failure` makes
#
# A separate class, which `common::again` includes but does not contain: resources that are ordered after a profile which contains
# `common::again` can still notify the Exec.
#
# @example
#   include common::again
#
# @api private
class common::again::requests {
  if $caller_module_name != $module_name {
    fail("${title} is private: include common::again")
  }

  exec { 'again':
    * => $common::again::exec + { 'command' => common::again::request('--resource=Exec[again]'), 'refreshonly' => true },
  }

  $common::again::deltas.each |$name, $parameters| {
    common::again::delta { $name:
      * => $parameters,
    }
  }
  $common::again::untils.each |$name, $parameters| {
    common::again::until { $name:
      * => $parameters,
    }
  }

  # Has no dependencies, so that a failed resource cannot prevent the request.
  if $common::again::on_failure != false and $common::again::active {
    $delta = $common::again::on_failure ? {
      true    => [],
      default => ["--delta=${common::again::on_failure}"],
    }

    again_on_failure { 'again-on-failure':
      command => common::again::request('--name=again-on-failure', '--resource=Class[Common::Again]', *$delta),
      tag     => $common::again::exec['tag'],
    }
  }
}
