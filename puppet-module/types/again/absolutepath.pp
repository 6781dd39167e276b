# @summary
#   Any absolute path without control characters
type Common::Again::Absolutepath = Pattern[/\A\/[^[:cntrl:]]*\z/]
