//! What is logged where a journal or syslog can be reached: those of the test, in a mount namespace.

use again_test_support::Scratch;

use crate::logging::{STARTS, about, in_order, write_manifest};

/// Receives the journal's datagrams, and writes down each on a line of its own.
const JOURNAL: &str = "require 'socket'
socket = Socket.new(:UNIX, :DGRAM)
socket.bind(Addrinfo.unix(ARGV[0]))
File.write('ready', '')
loop { text = socket.recv(65536); File.open('journal', 'a') { |f| f.puts text.inspect } }
";

/// Makes a request that is due after a second, and waits for its end, in a mount namespace where the only socket to log to is
/// `socket`, the test's; what arrives there is in the file `journal`, a line for each datagram.
fn request_where_only(scratch: &Scratch, socket: &str) {
    scratch.write("journal.rb", JOURNAL);
    write_manifest(scratch);
    let script = format!(
        "set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/journal
mount -t tmpfs none /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
ruby journal.rb {socket} & journal=$!
until test -e ready; do sleep 0.05; done
ruby bin/puppet apply site.pp
until status=0; $AGAIN status > /dev/null || status=$?; test $status = 3; do sleep 0.05; done
sleep 0.3
kill $journal"
    );
    let said = scratch.run("unshare", &["--mount", "sh", "-c", &script]);
    assert_eq!(
        said.status(),
        0,
        "this test takes root, for a mount namespace of its own: {said:?}"
    );
}

/// The journal first: a waiter finds its socket where it always looks.
#[test]
fn waiter_logs_to_the_journal_with_fields() {
    let scratch = Scratch::for_operator();
    request_where_only(&scratch, "/run/systemd/journal/socket");
    let journal = scratch.text("journal");
    let lines = in_order(journal.lines().collect());
    let mut fields = String::new();
    for (name, value) in about(&scratch) {
        fields += &format!("\\nAGAIN_{}={value}", name.to_uppercase());
    }
    fields += "\\nAGAIN_RUN=2\\n\"";
    assert_eq!(lines.len(), STARTS.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(STARTS) {
        let head = "\"PRIORITY=6\\nSYSLOG_IDENTIFIER=again\\nSYSLOG_FACILITY=3\\nMESSAGE=";
        assert!(line.starts_with(&format!("{head}{start}")), "{line}");
        let line = line.replace("AGAIN_RUN=2\\nAGAIN_CHAIN", "AGAIN_CHAIN");
        assert!(line.contains(&fields), "{line} lacks {fields}");
    }
    // Nothing else was written to.
    assert!(!scratch.path("state/again.log").exists());
}

/// No journal: syslog(3), as a daemon's messages, with the fields on the line.
#[test]
fn waiter_logs_to_syslog_without_a_journal() {
    let scratch = Scratch::for_operator();
    request_where_only(&scratch, "/dev/log");
    let syslog = scratch.text("journal");
    let lines = in_order(syslog.lines().collect());
    assert_eq!(lines.len(), STARTS.len(), "{lines:#?}");
    let pid = |line: &str| -> i32 {
        let rest = line
            .strip_prefix("\"<30>again[")
            .unwrap_or_else(|| panic!("{line}"));
        let (pid, _) = rest.split_once("]: ").unwrap_or_else(|| panic!("{line}"));
        pid.parse().expect("a pid")
    };
    for (line, start) in lines.iter().zip(STARTS) {
        // The requester's, and then the waiter's.
        let who = usize::from(start != STARTS[0]);
        assert_eq!(pid(line), pid(lines[who]), "{lines:#?}");
        assert!(line.contains(&format!("]: {start}")), "{line}");
        for (name, value) in about(&scratch) {
            assert!(line.contains(&format!(" {name}={value}")), "{line}");
        }
    }
    assert!(!scratch.path("state/again.log").exists());
}

#[test]
fn commands_log_what_they_change_to_the_journal() {
    let scratch = Scratch::for_operator();
    assert!(
        nix::unistd::geteuid().is_root(),
        "a mount namespace takes root"
    );
    scratch.write_shell(
        "site.pp",
        "test -n \"$AGAIN_RUN\" || $AGAIN run --name 'a b' --delta 1h --max-runs 1\n",
    );
    scratch.write(
        "journal.rb",
        "require 'socket'; s = Socket.new(:UNIX, :DGRAM); s.bind(Addrinfo.unix(ARGV[0])); File.write('ready', '')
         File.open('journal', 'w') { |f| f.sync = true; loop { f.puts s.recv(65536).dump } }",
    );
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal
ruby journal.rb /run/systemd/journal/socket & journal=$!
until test -e ready; do sleep 0.05; done
pending() { until $AGAIN status | grep \", at .*$1\"; do sleep 0.05; done; }
ruby bin/puppet apply site.pp
$AGAIN disable 'not now'
ruby bin/puppet apply site.pp
$AGAIN enable
pending 'waiter pid'
$AGAIN stop
$AGAIN stop
ruby bin/puppet apply site.pp
pending 'waiter pid'
kill -9 $($AGAIN status | sed -n 's/.*waiter pid \\([0-9]*\\)).*/\\1/p')
until $AGAIN status | grep 'waiter is dead'; do sleep 0.05; done
$AGAIN resume
pending 'waiter pid'
$AGAIN now
until status=0; $AGAIN status > /dev/null || status=$?; test $status = 3; do sleep 0.05; done
$AGAIN reset
$AGAIN reset
sleep 0.3; kill $journal";
    let said = scratch.run("timeout", &["60", "unshare", "--mount", "sh", "-c", script]);
    let journal = scratch.text("journal");
    // What changes nothing, such as the second `stop`, is not there.
    for (message, fields, times) in [
        ("scheduled: puppet apply", "AGAIN_TIMER=a b", 2),
        ("disabled: requests are refused", "", 1),
        ("refused: again is disabled (not now)", "AGAIN_TIMER=a b", 1),
        ("enabled: requests are granted again", "", 1),
        ("stopped: timer 'a b'", "AGAIN_TIMER=a b", 1),
        ("resumed: timer 'a b'", "AGAIN_TIMER=a b", 1),
        ("brought forward: timer 'a b'", "AGAIN_TIMER=a b", 1),
        ("reset: puppet apply", "AGAIN_TARGET=", 1),
    ] {
        let lines = journal
            .lines()
            .filter(|line| line.contains(&format!("MESSAGE={message}")));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), times, "{message:?} in {journal}, {said:?}");
        for line in lines {
            assert!(line.contains(fields), "{line}");
        }
    }
}

/// A driver's whole life, and what it was asked for, by the chain's field.
#[test]
fn converge_logs_its_runs_to_the_journal() {
    let scratch = Scratch::for_operator();
    scratch.write("journal.rb", JOURNAL);
    scratch.write(
        "run",
        "case $AGAIN_RUN in '') $AGAIN run --name first --resource 'Exec[x]';; 2) $AGAIN disable work; $AGAIN run; $AGAIN enable;; esac\n",
    );
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal
ruby journal.rb /run/systemd/journal/socket & journal=$!
until test -e ready; do sleep 0.05; done
$AGAIN converge -- sh run
sleep 0.3; kill $journal";
    let said = scratch.run("unshare", &["--mount", "sh", "-c", script]);
    let journal = scratch.text("journal");
    let chain = journal
        .split_once("AGAIN_CHAIN=")
        .map(|(_, rest)| rest.split('\\').next().expect("a chain").to_owned());
    let of_chain = format!(
        "AGAIN_CHAIN={}",
        chain.unwrap_or_else(|| panic!("{said:?}\n{journal}"))
    );
    let lines: Vec<&str> = journal
        .lines()
        .filter(|line| line.contains(&of_chain))
        .collect();
    let expected = [
        ("'again converge' begins: sh run, pid ", "0"),
        ("run 1 of at most 10: sh run", "1"),
        ("scheduled: taken by 'again converge' (pid ", "2"),
        ("run 1 succeeded after ", "1"),
        ("run 2 of at most 10: sh run", "2"),
        ("refused: again is disabled (work)", "3"),
        ("run 2 succeeded after ", "2"),
        (
            "'again converge' ends: converged: nothing asks for more (2 runs in ",
            "2",
        ),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, (message, run)) in lines.iter().zip(expected) {
        assert!(
            line.contains(&format!("MESSAGE={message}")),
            "{message}: {line}"
        );
        assert!(
            line.contains(&format!("AGAIN_RUN={run}\\n")),
            "{message}: {line}"
        );
    }
}

/// Whoever reads the system's log has stopped: what is logged goes to the file, and nothing waits for it.
#[test]
fn rerun_starts_while_the_journal_hangs() {
    let scratch = Scratch::for_operator();
    scratch.write(
        "journal.rb",
        "require 'socket'; s = Socket.new(:UNIX, :DGRAM); s.bind(Addrinfo.unix(ARGV[0]))
full = Socket.new(:UNIX, :DGRAM)
begin; loop { full.sendmsg_nonblock('x', 0, Addrinfo.unix(ARGV[0])) }; rescue IO::WaitWritable; end
File.write('ready', ''); sleep",
    );
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9
ruby journal.rb /run/systemd/journal/socket & journal=$!
until test -e ready; do sleep 0.05; done
$AGAIN run -- /bin/touch $HERE/touched
$AGAIN disable 'not now' && $AGAIN enable
until test -e touched; do sleep 0.05; done
kill $journal";
    let began = std::time::Instant::now();
    let said = scratch.run("timeout", &["60", "unshare", "--mount", "sh", "-c", script]);
    assert_eq!(said.status(), 0, "{said:?}");
    assert!(
        began.elapsed() < again_test_support::SHORT / 2,
        "{:?}",
        began.elapsed()
    );
    let log = scratch.text("state/again.log");
    for line in [
        "disabled: requests are refused",
        "enabled: requests are granted",
        "starts the rerun",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
}
