use crate::bench::Bench;

/// Receives the journal's datagrams, and writes down each on a line of its own.
const JOURNAL: &str = "require 'socket'
socket = Socket.new(:UNIX, :DGRAM)
socket.bind(Addrinfo.unix(ARGV[0]))
File.write('ready', '')
loop { text = socket.recv(65536); File.open('journal', 'a') { |f| f.puts text.inspect } }
";

/// In a mount namespace of its own, the journal's socket is the test's: a waiter
/// finds it where it always looks.
#[test]
fn a_waiters_events_reach_the_journal_with_their_fields() {
    let bench = Bench::new();
    if bench.run("unshare", &["--mount", "true"]).status != 0 {
        eprintln!("not tried: a mount namespace of its own takes root");
        return;
    }
    bench.write("journal.rb", JOURNAL);
    bench.write(
        "site.pp",
        "test -n \"$AGAIN_RUN\" || $AGAIN run --delta 1 --name 'a b'\n",
    );
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal
ruby journal.rb /run/systemd/journal/socket & journal=$!
until test -e ready; do sleep 0.05; done
ruby bin/puppet apply site.pp
until $AGAIN status >/dev/null; test $? = 3; do sleep 0.05; done
sleep 0.3; kill $journal";
    bench.run("unshare", &["--mount", "sh", "-c", script]);
    let journal = bench.text("journal");
    let lines: Vec<&str> = journal.lines().collect();
    let report = bench.status();
    let last = &report["targets"][0]["last"];
    let fields = format!(
        "\\nAGAIN_TARGET={}\\nAGAIN_TIMER=a b\\nAGAIN_CHAIN={}\\nAGAIN_RUN=2\\n\"",
        report["targets"][0]["id"].as_str().expect("an id"),
        last["chain"].as_str().expect("a chain"),
    );
    // One line for each change of state, and none while it waits.
    assert_eq!(lines.len(), 3, "{lines:#?}");
    let starts = [
        "waits for the run with pid ",
        "waits until 20",
        "starts the rerun",
    ];
    for (line, start) in lines.iter().zip(starts) {
        let head = "\"PRIORITY=6\\nSYSLOG_IDENTIFIER=again\\nSYSLOG_FACILITY=3\\nMESSAGE=";
        assert!(line.starts_with(&format!("{head}{start}")), "{line}");
        let line = line.replace("AGAIN_RUN=2\\nAGAIN_CHAIN", "AGAIN_CHAIN");
        assert!(line.contains(&fields), "{line} lacks {fields}");
    }
    // Nothing else was written to.
    assert!(!bench.path("state/again.log").exists());
}

#[test]
fn how_much_a_command_says() {
    let mut bench = Bench::new();
    bench.apply("test -n \"$AGAIN_RUN\" || $AGAIN run\n");
    bench.settled();
    let err = |words: &[&str], level: &str| {
        let mut command = bench.command(words);
        if !level.is_empty() {
            command.env("AGAIN_LOG", level);
        }
        String::from_utf8_lossy(&command.output().expect("started").stderr).into_owned()
    };
    assert_eq!(err(&["log"], ""), "");
    assert!(err(&["log", "-v"], "").starts_with("again: info: run 2 of chain "));
    assert!(err(&["log"], "info").starts_with("again: info: run 2 of chain "));
    assert_eq!(err(&["log", "-v"], "off"), "");
}
