# @summary
#   A command that exits with 0 once a condition is met: an array runs without a shell, with an absolute path first; a string in `/bin/sh`
type Common::Again::Check = Variant[
  Pattern[/\A[^\x00]*[^\x00\s][^\x00]*\z/],
  Tuple[Common::Again::Absolutepath, Pattern[/\A[^\x00]*\z/], 1, default],
]
