# @summary
#   Source of a file: an absolute path, or a URL that begins with `puppet:`, `file:`, `http:` or `https:`
type Common::Again::Source = Pattern[/\A(puppet|file|https?):\/\/[^[:cntrl:]]+\z/, /\A\/[^[:cntrl:]]*\z/]
