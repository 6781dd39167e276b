# @summary
#   Files with which a node of a fleet identifies itself and verifies others, and how it checks revocation
#
# The default for each file is Puppet's own file.
type Common::Again::Certificates = Struct[{
    Optional['cert']       => Common::Again::Path,
    Optional['key']        => Common::Again::Path,
    Optional['ca']         => Common::Again::Path,
    Optional['crl']        => Common::Again::Path,
    Optional['revocation'] => Enum['chain', 'leaf', 'off'],
}]
