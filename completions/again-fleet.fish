# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_again_fleet_global_optspecs
    string join \n config= state-dir= h/help V/version
end

function __fish_again_fleet_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_again_fleet_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_again_fleet_using_subcommand
    set -l cmd (__fish_again_fleet_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c again-fleet -n "__fish_again_fleet_needs_command" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_needs_command" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -s V -l version -d 'Print version'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "serve" -d 'Carry triggers between this node and its fleet; started by again-fleet.service'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "trigger" -d 'Have Puppet run on other nodes; called by the resource type trigger, or by a person'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "cancel" -d 'Take back a trigger that its node has not taken yet'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "story" -d 'Tell what followed from a firing, over all nodes, as a tree'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "events" -d 'Show what runs of Puppet did on all nodes, the moment it happens'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "nodes" -d 'Show who is there, and what each node tells of itself'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "forget" -d 'Remove a node that is gone for good from what is shown and selected'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "slot" -d 'Wait until this run may start: one of a bounded number in the fleet; for Puppet\'s prerun_command'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "slots" -d 'Show who runs and who waits, of those that share slots'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "release" -d 'Take away a node\'s place among those that share slots'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "locks" -d 'Show which node holds which lock'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "move" -d 'Move a lock to another candidate'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "check" -d 'See whether this node can fire and be fired at, and what to do where it cannot'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "ca" -d 'Make certificates for nodes that have no Puppet server'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "executor" -d 'Verify triggers that the service hands over, and have them run; started by again-fleet-executor.socket'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "call" -d 'Call the programs of rules; started by again-fleet-calls.path'
complete -c again-fleet -n "__fish_again_fleet_needs_command" -f -a "tell" -d 'Tell the fleet of this node; called by the resource type again_inventory'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand serve" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand serve" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand serve" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l to -d 'The nodes, by certname' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l where -d 'Nodes with such a fact: role=haproxy, role!=db, \'uptime>10\', \'uptime<10\', \'hostname=~^web\'; all of several' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l class -d 'Nodes whose last catalog had this class, or one of these' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l environment -d 'Nodes of this environment' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l name -d 'The name of the trigger: fired again before a node has taken it, the newer one takes its place [default: again]' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l delta -d 'How long each node waits at least before it runs' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l parallel -d 'How many of the nodes run at a time; the next begins when one has told how it ended [default: all]' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l stop-after-failures -d 'Once so many of them have failed, those that have not begun do not' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l ttl -d 'How long a node that is away may take it [default: ttl of the settings, an hour; with --parallel a day]' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l for -d 'Fire on behalf of this node, whose report asks for it; called by the report processor kick' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l job-id -d 'The job id in that report, empty for none, by which it is known where the run comes from' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l backend -d 'Fire over this backend or not at all: etcd or nats' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l wait -d 'Wait until each node has told how its run ended, at most for the ttl and the delta'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand trigger" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand cancel" -l to -d 'All that is on its way from here to this node' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand cancel" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand cancel" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand cancel" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand cancel" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -l dot -d 'Print a picture for Graphviz'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -l svg -d 'Print a picture of its own, as SVG, with the time from left to right'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -l follow -d 'Go on printing what changes, until nothing more is to come'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand story" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l node -d 'Of this node only' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l type -d 'Of resources of this type only: Service' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l graphite -d 'Print the metrics of runs that have ended as Graphite reads them, below this name' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l follow -d 'Go on printing what happens, until it is interrupted'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l failed -d 'Failures only'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -l json -d 'Print JSON, a line for each'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand events" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l where -d 'Nodes with such a fact: role=haproxy, role!=db, \'uptime>10\', \'uptime<10\', \'hostname=~^web\'; all of several' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l class -d 'Nodes whose last catalog had this class, or one of these' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l environment -d 'Nodes of this environment' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -l follow -d 'Go on showing what changes, until it is interrupted: those first that need a look'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand nodes" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand forget" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand forget" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand forget" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slot" -l group -d 'The group whose slots are meant [default: slots_group of the settings; without, nothing is waited for]' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slot" -l max-wait -d 'How long to wait at most [default: slots_max_wait of the settings, 30 minutes]' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slot" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slot" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slot" -l json -d 'Print a line of JSON for each change'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slot" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slots" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slots" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slots" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand slots" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand release" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand release" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand release" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and not __fish_seen_subcommand_from reset" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and not __fish_seen_subcommand_from reset" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and not __fish_seen_subcommand_from reset" -l own -d 'Only those for which this node is a candidate, as its service knows them, without asking the backend'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and not __fish_seen_subcommand_from reset" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and not __fish_seen_subcommand_from reset" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and not __fish_seen_subcommand_from reset" -f -a "reset" -d 'Reset the tokens of a lock that nobody holds'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and __fish_seen_subcommand_from reset" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and __fish_seen_subcommand_from reset" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand locks; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand move" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand move" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand move" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand check" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand check" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand check" -l json -d 'Print JSON'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand check" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -l dir -d 'Directory of the CA' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -f -a "create" -d 'Make a CA in a new directory'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -f -a "sign" -d 'Make a key and a certificate for each node, to be copied there'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and not __fish_seen_subcommand_from create sign revoke" -f -a "revoke" -d 'Revoke the certificates of nodes'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from create" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from create" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from sign" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from sign" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from sign" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from revoke" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from revoke" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand ca; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand executor" -l idle -d 'End when nobody has asked for so long' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand executor" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand executor" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand executor" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand call" -l idle -d 'End when nobody has asked for so long' -r
complete -c again-fleet -n "__fish_again_fleet_using_subcommand call" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand call" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand call" -s h -l help -d 'Print help'
complete -c again-fleet -n "__fish_again_fleet_using_subcommand tell" -l end -d 'How this run ends: changed, unchanged or failed [default: it begins, and standard input has an object of JSON with facts, classes, environment and puppet]' -r -f -a "changed\t''
unchanged\t''
failed\t''"
complete -c again-fleet -n "__fish_again_fleet_using_subcommand tell" -l config -d 'Settings [default: /etc/again-fleet.toml]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand tell" -l state-dir -d 'State directory [default: /var/lib/again-fleet]' -r -F
complete -c again-fleet -n "__fish_again_fleet_using_subcommand tell" -s h -l help -d 'Print help'
