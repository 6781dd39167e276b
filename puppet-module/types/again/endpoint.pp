# @summary
#   A server of a backend: `host` or `host:port`, the host a name, an address, or an address of IPv6 in brackets
type Common::Again::Endpoint = Pattern[/\A([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?\z/]
