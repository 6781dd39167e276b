# @summary
#   Settings of the slots that a group of nodes shares, and for which their Puppet runs wait
type Common::Again::Slots = Struct[{
    group              => Pattern[/\A[\x20-\x7e]{1,128}\z/],
    limit              => Integer[1, 100000],
    Optional[required] => Boolean,
    Optional[prerun]   => Boolean,
    Optional[max_wait] => Variant[Integer[1, 86400], Pattern[/\A([1-9][0-9]{0,3}s?|[1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h|1d)\z/]],
}]
