# @summary
#   Settings of pending requests, by their names in again.toml(5)
type Common::Again::Pending = Struct[{
    Optional['save_environment']     => Boolean,
    Optional['scope']                => Enum['auto', 'never'],
    Optional['container']            => Enum['auto', 'stays'],
    Optional['hold_before_shutdown'] => Common::Again::Duration,
    Optional['stuck']                => Enum['report', 'end'],
}]
