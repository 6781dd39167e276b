# @summary
#   At the cap: `fail` (the report shows it), `wait` (put the run off until the cap allows it), `skip` (do nothing, and say so)
type Common::Again::OnCap = Enum['fail', 'wait', 'skip']
