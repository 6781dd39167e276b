# @summary
#   The name of the timer of a define, which must not be one that this module uses itself
#
# A timer replaces a pending one of the same name. So a delta called `again-on-failure` would silently cancel what `on_failure` asked for.
#
# @param define
#   The define that asks, for the error.
#
# @param title
#   Its title.
#
# @return [String[1]]
#   The title, if it can be the name of a timer.
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
