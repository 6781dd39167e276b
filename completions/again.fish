# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_again_global_optspecs
    string join \n state-dir= log-dir= config= v/verbose delta= jitter= start-timer-now name= resource= max-runs= max-runs-total= window= on-cap= origin= agent-catalog-run-lockfile= agent-disabled-lockfile= lastrunfile= pidfile= h/help V/version
end

function __fish_again_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_again_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_again_using_subcommand
    set -l cmd (__fish_again_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c again -n "__fish_again_needs_command" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_needs_command" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_needs_command" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_needs_command" -l delta -d 'Wait at least this long after the run has ended (seconds, or 90s 2m 1h 1d)' -r
complete -c again -n "__fish_again_needs_command" -l jitter -d 'Add a random wait of up to this much [default: a quarter of delta, at least 2s]' -r
complete -c again -n "__fish_again_needs_command" -l name -d 'Name of the timer; a newer request of the same name replaces the older one [default: again]' -r
complete -c again -n "__fish_again_needs_command" -l resource -d 'The requesting resource, for status and history to show' -r
complete -c again -n "__fish_again_needs_command" -l max-runs -d 'Cap: at most this many reruns of the target within the window [default: 10]' -r
complete -c again -n "__fish_again_needs_command" -l max-runs-total -d 'Cap over all targets together: at most this many reruns within the window [default: three times --max-runs]' -r
complete -c again -n "__fish_again_needs_command" -l window -d 'The cap\'s window [default: 1h]' -r
complete -c again -n "__fish_again_needs_command" -l on-cap -d 'At the cap: fail (exit 1), wait until the window allows it, or skip (exit 0) [default: fail]' -r -f -a "fail\t'Refuse, exit 1'
wait\t'Schedule for the moment the window allows'
skip\t'Refuse, exit 0'"
complete -c again -n "__fish_again_needs_command" -l origin -d 'The triggers of other nodes that this is for, as again-fleet writes them; needs a COMMAND' -r
complete -c again -n "__fish_again_needs_command" -l agent-catalog-run-lockfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_needs_command" -l agent-disabled-lockfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_needs_command" -l lastrunfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_needs_command" -l pidfile -d 'Puppet\'s setting of that name, in the agent\'s daemon' -r -F
complete -c again -n "__fish_again_needs_command" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_needs_command" -l start-timer-now -d 'Count delta from now rather than from the end of the run'
complete -c again -n "__fish_again_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c again -n "__fish_again_needs_command" -s V -l version -d 'Print version'
complete -c again -n "__fish_again_needs_command" -a "run" -d 'Ask for a rerun of the puppet run above this process, or of COMMAND'
complete -c again -n "__fish_again_needs_command" -a "status" -d 'Show what is pending, what runs, and how the last rerun ended'
complete -c again -n "__fish_again_needs_command" -a "stop" -d 'Cancel pending timers: those named, or all'
complete -c again -n "__fish_again_needs_command" -a "now" -d 'Bring pending timers forward: those named, or all'
complete -c again -n "__fish_again_needs_command" -a "disable" -d 'Refuse requests and hold pending timers until \'again enable\''
complete -c again -n "__fish_again_needs_command" -a "enable" -d 'Grant requests again, and let held timers go on'
complete -c again -n "__fish_again_needs_command" -a "reset" -d 'Forget the reruns that count towards the cap'
complete -c again -n "__fish_again_needs_command" -a "history" -d 'Show every request and what became of it'
complete -c again -n "__fish_again_needs_command" -a "log" -d 'Show the output of a rerun'
complete -c again -n "__fish_again_needs_command" -a "metrics" -d 'Write metrics for node_exporter\'s textfile collector'
complete -c again -n "__fish_again_needs_command" -a "explain" -d 'Explain what a request would run again and why, or why not; changes nothing'
complete -c again -n "__fish_again_needs_command" -a "converge" -d 'Run COMMAND in the foreground, again and again until nothing asks for more'
complete -c again -n "__fish_again_needs_command" -a "resume" -d 'Give new waiters to pending timers whose waiters have died; for the boot unit'
complete -c again -n "__fish_again_needs_command" -a "fleet" -d 'Run again-fleet: what a change on this node starts on others'
complete -c again -n "__fish_again_using_subcommand run" -l delta -d 'Wait at least this long after the run has ended (seconds, or 90s 2m 1h 1d)' -r
complete -c again -n "__fish_again_using_subcommand run" -l jitter -d 'Add a random wait of up to this much [default: a quarter of delta, at least 2s]' -r
complete -c again -n "__fish_again_using_subcommand run" -l name -d 'Name of the timer; a newer request of the same name replaces the older one [default: again]' -r
complete -c again -n "__fish_again_using_subcommand run" -l resource -d 'The requesting resource, for status and history to show' -r
complete -c again -n "__fish_again_using_subcommand run" -l max-runs -d 'Cap: at most this many reruns of the target within the window [default: 10]' -r
complete -c again -n "__fish_again_using_subcommand run" -l max-runs-total -d 'Cap over all targets together: at most this many reruns within the window [default: three times --max-runs]' -r
complete -c again -n "__fish_again_using_subcommand run" -l window -d 'The cap\'s window [default: 1h]' -r
complete -c again -n "__fish_again_using_subcommand run" -l on-cap -d 'At the cap: fail (exit 1), wait until the window allows it, or skip (exit 0) [default: fail]' -r -f -a "fail\t'Refuse, exit 1'
wait\t'Schedule for the moment the window allows'
skip\t'Refuse, exit 0'"
complete -c again -n "__fish_again_using_subcommand run" -l origin -d 'The triggers of other nodes that this is for, as again-fleet writes them; needs a COMMAND' -r
complete -c again -n "__fish_again_using_subcommand run" -l agent-catalog-run-lockfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l agent-disabled-lockfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l lastrunfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l pidfile -d 'Puppet\'s setting of that name, in the agent\'s daemon' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand run" -l start-timer-now -d 'Count delta from now rather than from the end of the run'
complete -c again -n "__fish_again_using_subcommand run" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c again -n "__fish_again_using_subcommand status" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand status" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand status" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand status" -l json -d 'Write JSON, as described in again-json(5)'
complete -c again -n "__fish_again_using_subcommand status" -l this-run -d 'Only the target of the puppet run above this process'
complete -c again -n "__fish_again_using_subcommand status" -l watch -d 'Show it again when it changes, until interrupted'
complete -c again -n "__fish_again_using_subcommand status" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand status" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand stop" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand stop" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand stop" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand stop" -l run -d 'Also end reruns that are under way (TERM, after 10 seconds KILL)'
complete -c again -n "__fish_again_using_subcommand stop" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand stop" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand now" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand now" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand now" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand now" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand now" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand disable" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand disable" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand disable" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand disable" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand disable" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand enable" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand enable" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand enable" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand enable" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand enable" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand reset" -l target -d 'Only this target: its id, or the beginning of it' -r
complete -c again -n "__fish_again_using_subcommand reset" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand reset" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand reset" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand reset" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand reset" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand history" -s n -d 'Only the newest N chains [default: 10; with --json all]' -r
complete -c again -n "__fish_again_using_subcommand history" -l chain -d 'Only this chain: its id, or the beginning of it' -r
complete -c again -n "__fish_again_using_subcommand history" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand history" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand history" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand history" -l json -d 'Write a line of JSON for each event, as described in again-json(5)'
complete -c again -n "__fish_again_using_subcommand history" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand history" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand log" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand log" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand log" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand log" -s f -l follow -d 'Go on until the rerun has ended'
complete -c again -n "__fish_again_using_subcommand log" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand log" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand metrics" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand metrics" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand metrics" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand metrics" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand explain" -l pid -d 'Look at this process and its parents, rather than at the caller' -r
complete -c again -n "__fish_again_using_subcommand explain" -l delta -d 'Wait at least this long after the run has ended (seconds, or 90s 2m 1h 1d)' -r
complete -c again -n "__fish_again_using_subcommand explain" -l jitter -d 'Add a random wait of up to this much [default: a quarter of delta, at least 2s]' -r
complete -c again -n "__fish_again_using_subcommand explain" -l name -d 'Name of the timer; a newer request of the same name replaces the older one [default: again]' -r
complete -c again -n "__fish_again_using_subcommand explain" -l resource -d 'The requesting resource, for status and history to show' -r
complete -c again -n "__fish_again_using_subcommand explain" -l max-runs -d 'Cap: at most this many reruns of the target within the window [default: 10]' -r
complete -c again -n "__fish_again_using_subcommand explain" -l max-runs-total -d 'Cap over all targets together: at most this many reruns within the window [default: three times --max-runs]' -r
complete -c again -n "__fish_again_using_subcommand explain" -l window -d 'The cap\'s window [default: 1h]' -r
complete -c again -n "__fish_again_using_subcommand explain" -l on-cap -d 'At the cap: fail (exit 1), wait until the window allows it, or skip (exit 0) [default: fail]' -r -f -a "fail\t'Refuse, exit 1'
wait\t'Schedule for the moment the window allows'
skip\t'Refuse, exit 0'"
complete -c again -n "__fish_again_using_subcommand explain" -l origin -d 'The triggers of other nodes that this is for, as again-fleet writes them; needs a COMMAND' -r
complete -c again -n "__fish_again_using_subcommand explain" -l agent-catalog-run-lockfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l agent-disabled-lockfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l lastrunfile -d 'Puppet\'s setting of that name, in the requesting run' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l pidfile -d 'Puppet\'s setting of that name, in the agent\'s daemon' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand explain" -l start-timer-now -d 'Count delta from now rather than from the end of the run'
complete -c again -n "__fish_again_using_subcommand explain" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c again -n "__fish_again_using_subcommand converge" -l max-runs -d 'At most this many runs, the first included [default: max_runs of the settings, 10]' -r
complete -c again -n "__fish_again_using_subcommand converge" -l timeout -d 'Give up after this long; a run under way then gets TERM, and 10 seconds later KILL' -r
complete -c again -n "__fish_again_using_subcommand converge" -l retry -d 'After a run of Puppet that applied no catalog, such as for want of its server, run again this much later; such runs do not count for --max-runs' -r
complete -c again -n "__fish_again_using_subcommand converge" -l until -d 'requests: until nothing asks for more; clean: until a run also changes nothing, by Puppet\'s summary or --detailed-exitcodes (a catalog with a bare notify is never clean)' -r -f -a "requests\t'Nothing asks for another run'
clean\t'Nothing asks for another run, and the last one changed nothing'"
complete -c again -n "__fish_again_using_subcommand converge" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand converge" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand converge" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand converge" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand converge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c again -n "__fish_again_using_subcommand resume" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand resume" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand resume" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand resume" -s v -l verbose -d 'Say more; twice for still more'
complete -c again -n "__fish_again_using_subcommand resume" -s h -l help -d 'Print help'
complete -c again -n "__fish_again_using_subcommand fleet" -l state-dir -d 'State directory [default: /var/lib/again, or ~/.local/state/again]' -r -F
complete -c again -n "__fish_again_using_subcommand fleet" -l log-dir -d 'Directory for the output of reruns [default: /var/log/again, or \'log\' in the state directory]' -r -F
complete -c again -n "__fish_again_using_subcommand fleet" -l config -d 'Settings [default: /etc/again.toml]' -r -F
complete -c again -n "__fish_again_using_subcommand fleet" -s v -l verbose -d 'Say more; twice for still more'
