# @summary
#   `Exec['again']`, the deltas and untils of the class, and the request that `on_failure` makes
#
# A class of its own, which `common::again` includes and does not contain: what comes after a profile that contains `common::again`
# may notify the Exec all the same.
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

  # Depends on nothing, so that nothing that fails can keep it from asking.
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
