//! `nodes --follow`: changes of the nodes' state, with real services and backends, line by line and
//! on a terminal.

use again_test_support::stays;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::nodes::{has_role, shown};
use crate::real::{done, well};
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::whole::{Node, until};

/// Running command, and its output so far.
struct Going {
    child: Child,
    text: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Going {
    fn new(mut command: Command) -> Going {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it is there");
        let mut out = child.stdout.take().expect("a pipe");
        let text = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = out.read(&mut bytes)
                && count > 0
            {
                let more = String::from_utf8_lossy(&bytes[..count]);
                heard.lock().expect("a text").push_str(&more);
            }
        });
        Going {
            child,
            text,
            reader,
        }
    }

    fn text(&self) -> String {
        self.text.lock().expect("a text").clone()
    }

    /// Waits until the command prints `what` after the position `seen`, and moves the position
    /// behind it.
    #[track_caller]
    fn prints(&self, seen: &mut usize, what: &str) {
        until(&format!("'{what}' in {}", self.text()), || {
            match self.text()[*seen..].find(what) {
                Some(at) => {
                    *seen += at + what.len();
                    true
                }
                None => false,
            }
        });
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill").success());
    }

    fn ends(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("its end");
        self.reader.join().expect("all of it");
        let text = self.text.lock().expect("a text").clone();
        (status, text)
    }
}

fn two(kind: Kind) -> (Server, Node, Node) {
    let server = Server::start(kind);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    [&web1, &lb1].iter().for_each(|node| node.is_linked(true));
    until("what both publish", || shown(&web1, &[]).len() == 2);
    (server, web1, lb1)
}

/// In a pipe each change is a line, before and after an outage of the backend, and nothing else is
/// printed.
#[test]
fn a_pipe_gets_a_line_for_each_change() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let (server, web1, lb1) = two(kind);
        let follow =
            |more: &[&str]| Going::new(web1.command(&[&["nodes", "--follow"], more].concat()));
        let (all, dbs) = (follow(&[]), follow(&["--where", "role=db"]));
        let mut seen = 0;
        all.prints(&mut seen, "again-fleet: 2 nodes: 2 alive\n");
        dbs.prints(&mut 0, "again-fleet: 0 nodes: 0 alive\n");
        has_role(&lb1, "lb");
        all.prints(&mut seen, "again-fleet: lb1.test: running\n");
        well(&lb1, &["tell", "--end=changed"]);
        all.prints(&mut seen, "again-fleet: lb1.test: changed\n");
        has_role(&lb1, "db");
        dbs.prints(&mut 0, "again-fleet: lb1.test: alive, changed, running\n");
        well(&lb1, &["tell", "--end=failed"]);
        all.prints(&mut seen, "again-fleet: lb1.test: failed\n");
        lb1.stop();
        Straight::at(&server, "web1.test").ages("lb1.test");
        all.prints(&mut seen, "again-fleet: lb1.test: gone\n");
        server.kill();
        let backend = match kind {
            Kind::Etcd => "etcd",
            Kind::Nats => "nats",
        };
        all.prints(&mut seen, &format!("again-fleet: {backend} "));
        all.prints(&mut seen, "; it is tried again\n");
        server.run();
        all.prints(
            &mut seen,
            &format!("again-fleet: {backend} is reached again: "),
        );
        all.signal("-INT");
        dbs.signal("-TERM");
        let (status, text) = all.ends();
        assert_eq!(status.signal(), Some(2), "{text}");
        assert_eq!(text.matches("it is tried again").count(), 1, "{text}");
        assert!(!text.contains('\x1b'), "{text:?}");
        let (status, text) = dbs.ends();
        assert_eq!(status.signal(), Some(15), "{text}");
        assert_eq!(text.matches("lb1.test: running").count(), 0, "{text}");
    }
}

/// The reader has closed the pipe, and nothing changes: the command ends.
#[test]
fn a_reader_that_went_away_is_noticed() {
    let (_server, web1, _lb1) = two(Kind::Etcd);
    let mut command = web1.command(&["nodes", "--follow"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it is there");
    let mut out = child.stdout.take().expect("a pipe");
    let mut bytes = [0; 100];
    assert!(out.read(&mut bytes).expect("the first line") > 10);
    drop(out);
    let status = child.wait().expect("its end");
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    let (status, _, err) = done(web1.command(&["nodes", "--follow", "--json"]));
    assert!(status == 2 && err.contains("--json"), "{err}");
}

/// Starts a shell that runs this script on a terminal of this size.
fn terminal(node: &Node, size: &str, script: &str) -> Going {
    let command = node.command(&["nodes", "--follow"]);
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| format!("'{}'", word.to_str().expect("plain")))
        .collect();
    let script = script.replace("FOLLOW", &words.join(" "));
    let mut terminal = Command::new("script");
    let line = format!("trap : INT; stty {size}; {script}");
    terminal.args([
        "--quiet",
        "--return",
        "--flush",
        "--command",
        &line,
        "/dev/null",
    ]);
    terminal.env("SHELL", "/bin/sh").env("TERM", "xterm");
    terminal.env("AGAIN_CONFIG", node.path("again.toml"));
    Going::new({
        terminal.stdin(Stdio::piped());
        terminal
    })
}

/// The terminal shows changes in place, its size is followed, and its settings are restored at the
/// end.
#[test]
fn a_terminal_is_drawn_on_and_left_as_it_was() {
    let (server, web1, lb1) = two(Kind::Etcd);
    let resize = web1.at("resize");
    let script = format!(
        "(until [ -e {resize} ]; do sleep 0.1; done; stty rows 4 cols 30 </dev/tty) & FOLLOW; echo status=$?; stty -a"
    );
    let mut shown = terminal(&web1, "rows 10 cols 100", &script);
    let mut typed = shown.child.stdin.take().expect("a pipe");
    let mut seen = 0;
    shown.prints(&mut seen, "\x1b[1m2 nodes: 2 alive\x1b[0m");
    shown.prints(&mut seen, "and 2 more that are quiet\r");
    // Typed characters are not shown.
    typed.write_all(b"typed\n").expect("typed");
    has_role(&lb1, "lb");
    shown.prints(
        &mut seen,
        "\x1b[2K\x1b[1m2 nodes: 2 alive, 1 running\x1b[0m",
    );
    shown.prints(&mut seen, "lb1.test  ");
    shown.prints(&mut seen, "running since ");
    shown.prints(&mut seen, "and 1 more that is quiet");
    well(&lb1, &["tell", "--end=failed"]);
    shown.prints(&mut seen, "2 nodes: 2 alive, 1 failed last");
    shown.prints(&mut seen, "\x1b[31mfailed ");
    // If nothing has changed, nothing is written.
    let before = shown.text().len();
    stays("as it was", std::time::Duration::from_secs(5), || {
        let more = shown.text().split_off(before);
        more.len() < 400 && !more.contains("\x1b[J")
    });
    web1.write("resize", "");
    shown.prints(&mut seen, "\x1b[H\x1b[J");
    shown.prints(&mut seen, "2 nodes: 2 alive, 1 failed las\x1b[0m");
    server.kill();
    shown.prints(&mut seen, "etcd is away since ");
    server.run();
    shown.prints(&mut seen, "2 nodes: ");
    typed.write_all(b"\x03").expect("typed");
    shown.prints(&mut seen, "status=130");
    let (status, text) = shown.ends();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(!text.contains("typed"), "{text:?}");
    let after = text.split("status=130").nth(1).expect("the rest");
    assert!(
        after.contains(" echo ") && !after.contains("-echo "),
        "{after}"
    );
    // Line wrapping is turned off only while the screen is written.
    assert_eq!(
        text.matches("\x1b[?7l").count(),
        text.matches("\x1b[?7h").count()
    );
}

/// The nodes are those that were connected when the backend was lost, however long the outage
/// lasts.
#[test]
fn no_node_is_called_gone_while_the_backend_is_away() {
    let (server, web1, _lb1) = two(Kind::Etcd);
    web1.set_ahead(0);
    let mut shown = terminal(&web1, "rows 10 cols 100", "FOLLOW");
    let mut typed = shown.child.stdin.take().expect("a pipe");
    let mut seen = 0;
    shown.prints(&mut seen, "2 nodes: 2 alive");
    server.kill();
    shown.prints(&mut seen, "; before: 2 nodes: 2 alive");
    // On the next day the time includes its date.
    web1.set_ahead(90_000);
    shown.prints(&mut seen, "etcd is away since ");
    shown.prints(&mut seen, "; before: 2 nodes: ");
    let alive = seen;
    shown.prints(&mut seen, "alive");
    assert_eq!(shown.text()[alive..seen], *"2 alive");
    typed.write_all(b"\x03").expect("typed");
    shown.ends();
}

/// A stopped job of a shell ends immediately when killed, and leaves the terminal's settings to the
/// shell: a background process that changes them is stopped.
#[test]
fn a_stopped_one_goes_on_or_ends() {
    let (_server, web1, _lb1) = two(Kind::Etcd);
    let script = "set -m; FOLLOW; fg; echo stopped=$?; kill %1; bg; wait %1; echo status=$?";
    let mut shown = terminal(&web1, "rows 10 cols 100", script);
    let mut typed = shown.child.stdin.take().expect("a pipe");
    let mut seen = 0;
    shown.prints(&mut seen, "and 2 more that are quiet");
    typed.write_all(b"\x1a").expect("typed");
    shown.prints(&mut seen, "\x1b[H\x1b[J");
    shown.prints(&mut seen, "and 2 more that are quiet");
    typed.write_all(b"\x1a").expect("typed");
    shown.prints(&mut seen, "status=");
    let (_, text) = shown.ends();
    let (_, after) = text.split_once("stopped=148").expect("stopped");
    assert!(after.contains("status=143"), "{text:?}");
    assert!(!after.contains('\x1b'), "{text:?}");
}
