# @summary
#   Names of the parts of etcd or NATS on an operating system
#
# `user` is the user of the service, `config` its configuration file, and `client` the package of its client if that is a separate one.
type Common::Again::Platform = Struct[{
    'package'          => String[1],
    'service'          => String[1],
    'user'             => String[1],
    'config'           => Common::Again::Absolutepath,
    Optional['client'] => String[1],
}]
