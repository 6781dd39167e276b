# @summary
#   A node of the cluster
class role::node {
  contain profile::base
  contain profile::cluster

  Class['profile::base'] -> Class['profile::cluster']
}
