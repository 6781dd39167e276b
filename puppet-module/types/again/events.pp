# @summary
#   Events that a node publishes: all, none, or those that match all keys of a hash
type Common::Again::Events = Variant[
  Boolean,
  Struct[{
      Optional[types]  => Array[Pattern[/\A[A-Za-z]\w*\z/], 1],
      Optional[titles] => Array[Pattern[/\A[^[:cntrl:]]+\z/], 1],
      Optional[tags]   => Array[Pattern[/\A[[:alnum:]_][[:alnum:]_:.-]*\z/], 1],
      Optional[only]   => Enum['corrective', 'failed'],
      Optional[values] => Boolean,
  }],
]
