# @summary
#   A SHA-256 in hexadecimal digits, as sha256sum(1) prints it
type Common::Again::Checksum = Pattern[/\A[0-9a-f]{64}\z/]
