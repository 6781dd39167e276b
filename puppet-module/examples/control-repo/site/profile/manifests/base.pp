# @summary
#   What every node has
class profile::base {
  contain common::again
}
