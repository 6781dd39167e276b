# @summary
#   Settings of the output of reruns, by their names in again.toml(5)
type Common::Again::Logs = Struct[{
    Optional['log_dir']       => Common::Again::Absolutepath,
    Optional['keep_logs']     => Integer[0, 4294967295],
    Optional['max_log_size']  => Common::Again::Size,
    Optional['max_logs_size'] => Common::Again::Size,
}]
