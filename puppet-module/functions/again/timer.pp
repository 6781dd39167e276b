# @summary
#   The timer name of a define, checked against the names that this module reserves
#
# A timer replaces a pending one of the same name: a delta named `again-on-failure` would silently cancel the timer of `on_failure`.
#
# @param define
#   Name of the define, for messages.
#
# @param title
#   Title of the define.
#
# @return [String[1]]
#   The title. If it cannot be the name of a timer, the catalog fails.
#
# @example
#   common::again::timer('common::again::delta', 'cluster')
#
# @api private
function common::again::timer(String[1] $define, String[1] $title) >> String[1] {
  if $title =~ /\A(again\z|again-|until )/ {
    fail("${define}: '${title}' names a timer of the module itself: choose another one than 'again', 'again-…' and 'until …'")
  }
  if $title =~ /[[:cntrl:]]/ or length($title) > 190 {
    fail("${define}: '${title}' cannot be the name of a timer: choose a title of at most 190 characters, none of them a control character")
  }
  $title
}
