# @summary
#   A command that succeeds once a condition holds: an array is run as it is (its first element an absolute path), a string by `/bin/sh`
type Common::Again::Check = Variant[
  Pattern[/\A[^\x00]*[^\x00\s][^\x00]*\z/],
  Tuple[Common::Again::Absolutepath, Pattern[/\A[^\x00]*\z/], 1, default],
]
