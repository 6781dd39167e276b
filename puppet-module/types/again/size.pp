# @summary
#   A size: a number of bytes (`500000`), or a number with a unit (`500K`, `16M`, `1G`; K is 1024 bytes); 0 means no limit
type Common::Again::Size = Variant[Integer[0], Pattern[/\A[0-9]{1,9}[KMG]?\z/]]
