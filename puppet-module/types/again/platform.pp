# @summary
#   What an operating system calls the parts of an etcd or a NATS
#
# `user` is that of the service, `config` its configuration file, and `client` the package of its client, if that is another one.
type Common::Again::Platform = Struct[{
    'package'          => String[1],
    'service'          => String[1],
    'user'             => String[1],
    'config'           => Common::Again::Absolutepath,
    Optional['client'] => String[1],
}]
