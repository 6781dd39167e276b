# @summary
#   A duration: a number of seconds (`120`, `'120'`), or one with a unit (`90s`, `2m`, `1h`, `1d`), within the limits of `again`
type Common::Again::Duration = Variant[Integer[0, 315360000], Pattern[/\A([0-9]{1,8}s?|[0-9]{1,6}m|[0-9]{1,4}h|[0-9]{1,3}d)\z/]]
