# @summary
#   An absolute path that needs no quoting in a shell, a unit file or a log line
type Common::Again::Path = Pattern[/\A\/[[:alnum:]_.,:@+~\/-]+\z/]
