# @summary
#   Files of the agent, by the names of Puppet's settings
type Common::Again::PuppetPaths = Struct[{
    Optional['agent_catalog_run_lockfile'] => Common::Again::Absolutepath,
    Optional['agent_disabled_lockfile']    => Common::Again::Absolutepath,
    Optional['lastrunfile']                => Common::Again::Absolutepath,
    Optional['pidfile']                    => Common::Again::Absolutepath,
}]
