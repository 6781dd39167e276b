# @summary
#   Where a File may be fetched from: an absolute path, or an address that begins with `puppet:`, `file:`, `http:` or `https:`
type Common::Again::Source = Pattern[/\A(puppet|file|https?):\/\/[^[:cntrl:]]+\z/, /\A\/[^[:cntrl:]]*\z/]
