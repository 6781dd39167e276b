# @summary
#   A program and its arguments, run without a shell
type Common::Again::Command = Tuple[Pattern[/\A[^\x00]+\z/], Pattern[/\A[^\x00]*\z/], 1, default]
