# @summary
#   Files that are copied for a server, with which it identifies itself and verifies nodes
#
# The default for each is Puppet's own file.
type Common::Again::ServerCertificates = Struct[{
    Optional['cert'] => Common::Again::Absolutepath,
    Optional['key']  => Common::Again::Absolutepath,
    Optional['ca']   => Common::Again::Absolutepath,
    Optional['crl']  => Common::Again::Absolutepath,
}]
