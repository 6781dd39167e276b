# @summary
#   Action at the cap: `fail` (the report shows it), `wait` (delay the run until the cap allows it), `skip` (do nothing and say so)
type Common::Again::OnCap = Enum['fail', 'wait', 'skip']
