# @summary
#   Pattern for nodes: a certname in which `*` stands for any characters but dots, or a trusted extension and its value (`pp_role=frontend`)
type Common::Again::Who = Pattern[/\A[a-z0-9._*-]+\z/, /\A[A-Za-z0-9._]+=[^[:cntrl:]]+\z/]
