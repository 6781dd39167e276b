# @summary
#   The files of which a server gets copies to prove who it is and to verify nodes
#
# What is missing is Puppet's own file.
type Common::Again::ServerCertificates = Struct[{
    Optional['cert'] => Common::Again::Absolutepath,
    Optional['key']  => Common::Again::Absolutepath,
    Optional['ca']   => Common::Again::Absolutepath,
    Optional['crl']  => Common::Again::Absolutepath,
}]
