# @summary
#   Kind of change of a resource in a Puppet run
type Common::Again::Change = Enum['changed', 'started', 'stopped', 'failed', 'refreshed']
