# @summary
#   Conditions on facts that a node publishes: a hash of facts and their values, or strings such as `'uptime>10'`
type Common::Again::Where = Variant[
  Hash[Pattern[/\A[^=!<>~\s[:cntrl:]]+\z/], Variant[Pattern[/\A[^[:cntrl:]]*\z/], Numeric, Boolean], 1],
  Array[Pattern[/\A[^=!<>~\s[:cntrl:]]+ *(=~|!=|=|<|>)[^[:cntrl:]]*\z/], 1],
]
