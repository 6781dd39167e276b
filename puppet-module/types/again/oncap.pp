# @summary
#   What a request does once the cap is reached: `fail` (the Exec fails, the report shows it), `wait` (it is put off until the window
#   allows a run again), `skip` (it does nothing and says so)
type Common::Again::OnCap = Enum['fail', 'wait', 'skip']
