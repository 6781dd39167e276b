node default {
  include role::node
}
