# @summary
#   What runs of Puppet wait for on a node: one of the slots that a group of nodes shares
type Common::Again::Slots = Struct[{
    group              => Pattern[/\A[^[:cntrl:]]{1,128}\z/],
    limit              => Integer[1, 100000],
    Optional[required] => Boolean,
    Optional[max_wait] => Common::Again::Duration,
}]
