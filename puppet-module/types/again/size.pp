# @summary
#   A size: a number of bytes (`500000`), or one with a unit of 1024 (`500K`, `16M`, `1G`); 0 is no limit
type Common::Again::Size = Variant[Integer[0], Pattern[/\A[0-9]{1,9}[KMG]?\z/]]
