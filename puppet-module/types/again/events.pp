# @summary
#   Which events of a node are told: all or none, or those that fit all that is said of them
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
