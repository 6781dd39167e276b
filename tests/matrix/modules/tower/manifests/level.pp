# A recursion that takes a run for each step: a level is built on the fact that the one below it is there.
define tower::level {
  include common::again

  $level = Integer($title)
  $below = String($level - 1)

  if $level > 1 {
    tower::level { $below: }
  }

  if $level == 1 or $below in $facts['tower'] {
    file { "/tmp/tower-${level}":
      content => "on ${below}\n",
      notify  => Exec['again'],
    }
  }
}
