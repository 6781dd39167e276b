# @summary
#   At the cap: `fail` (the report shows it), `wait` (the request is put off until a run is allowed), `skip` (nothing is done, and said)
type Common::Again::OnCap = Enum['fail', 'wait', 'skip']
