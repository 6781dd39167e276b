# The timer that the whole module shares.
class settle::again {
  include common::again

  common::again::delta { 'settle-exec-again':
    delta => 120,
  }
}
