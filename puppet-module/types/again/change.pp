# @summary
#   What happened to a resource in a run of Puppet
type Common::Again::Change = Enum['changed', 'started', 'stopped', 'failed', 'refreshed']
