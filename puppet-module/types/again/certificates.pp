# @summary
#   The files by which a node of a fleet proves who it is and verifies others, and how far it looks at revocation
#
# What is missing is Puppet's own file.
type Common::Again::Certificates = Struct[{
    Optional['cert']       => Common::Again::Path,
    Optional['key']        => Common::Again::Path,
    Optional['ca']         => Common::Again::Path,
    Optional['crl']        => Common::Again::Path,
    Optional['revocation'] => Enum['chain', 'leaf', 'off'],
}]
