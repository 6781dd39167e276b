//! Real backends on loopback: etcd and nats-server, with TLS certificates from a Puppet CA. A
//! server ends with the test program, in whatever way that ends.

use again_test_support::{SHORT, ask_for, wait_until};
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use again_fleet::backend::etcd::Etcd;
use again_fleet::backend::nats::Nats;
use again_fleet::backend::{Backend, Error, Times, Tls};
use again_fleet::identity::authority::Revocation;
use again_fleet::wire::name::Namespace;

use crate::ca::Ca;

/// Shell script that starts a command, writes its pid, and kills it when a line arrives on standard
/// input, or when standard input ends. In the latter case the test program has ended, and the
/// script also removes its directory. The script ends after the command has ended, because a dying
/// process still holds its ports.
const KEEPER: &str = r#"
dir=$1; shift
trap '' INT HUP
"$@" >>"$dir/log" 2>&1 </dev/null &
echo $! >"$dir/pid.new" && mv "$dir/pid.new" "$dir/pid"
if read -r _; then kill -KILL $!; wait $!; else kill -KILL $!; wait $!; rm -rf "$dir"; fi
"#;

/// Kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Etcd,
    Nats,
}

/// Backend server, as a process of its own.
pub struct Server {
    pub kind: Kind,
    pub port: u16,
    peer_port: u16,
    /// Peer ports of all members, including its own.
    peers: Vec<u16>,
    dir: PathBuf,
    keeper: Mutex<Option<Child>>,
    /// Further lines of nats-server's configuration, or further arguments of etcd.
    configuration: String,
    /// Name of the server's certificate.
    certificate: &'static str,
    /// Directory of the certificate in the form of Puppet's `ssldir`, if it comes from another CA
    /// than the tests'.
    ssldir: Option<PathBuf>,
    /// Number of bytes that the server may store; without it, there is no limit.
    room: Option<u64>,
}

impl Server {
    /// Starts a server, and waits until it answers.
    pub fn start(kind: Kind) -> Server {
        Server::configured(kind, "")
    }

    /// Starts a server with more configuration: lines for nats-server, arguments for etcd.
    pub fn configured(kind: Kind, configuration: &str) -> Server {
        let server = Server::new(kind, configuration);
        server.run();
        server
    }

    /// Starts a server with this certificate.
    pub fn with_certificate(kind: Kind, certificate: &'static str) -> Server {
        let mut server = Server::new(kind, "");
        server.certificate = certificate;
        server.run();
        server
    }

    /// Starts a server whose certificate of this name is in a directory like Puppet's `ssldir`.
    #[allow(dead_code, reason = "for the suite verbs")]
    pub fn with_ssldir(kind: Kind, certificate: &'static str, ssldir: &Path) -> Server {
        let mut server = Server::new(kind, "");
        (server.certificate, server.ssldir) = (certificate, Some(ssldir.to_owned()));
        server.run();
        server
    }

    /// Starts a server that stores at most this number of bytes.
    #[allow(dead_code, reason = "for the suite backends")]
    pub fn with_room(kind: Kind, bytes: u64) -> Server {
        let mut server = Server::new(kind, "");
        server.room = Some(bytes);
        server.run();
        server
    }

    /// Starts three servers that hold the same data, and have found each other. Members of NATS
    /// 2.10 that are started at the same time sometimes never do, and do not place a stream until
    /// they are restarted.
    pub fn cluster(kind: Kind) -> [Server; 3] {
        let mut tried = 0;
        loop {
            let servers = Server::three(kind);
            let Err(why) = servers[0].is_one_of_three() else {
                return servers;
            };
            tried += 1;
            assert!(tried < 4, "{why}");
        }
    }

    /// Waits until a stream, or a value, is available from all three members; otherwise returns the
    /// error.
    fn is_one_of_three(&self) -> Result<(), Error> {
        let (node, namespace) = ("web1.test".parse(), "found".parse());
        let (node, namespace) = (node.expect("a certname"), namespace.expect("a namespace"));
        let (servers, tls, times) = ([self.address()], tls("web1.test"), Times::default());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let since = Instant::now();
        loop {
            let found = runtime.block_on(async {
                match self.kind {
                    Kind::Etcd => {
                        let backend = Etcd::new(&servers, Some(&tls), times.clone()).await?;
                        backend.list("again/").await.map(drop)
                    }
                    Kind::Nats => {
                        let namespace = Namespace::clone(&namespace);
                        let backend =
                            Nats::connect(&servers, Some(&tls), &node, namespace, times.clone());
                        backend.await.map(drop)
                    }
                }
            });
            if found.is_ok() || since.elapsed() > Duration::from_secs(60) {
                return found;
            }
        }
    }

    fn three(kind: Kind) -> [Server; 3] {
        let mut servers = [(); 3].map(|()| Server::new(kind, ""));
        let peers: Vec<u16> = servers.iter().map(|server| server.peer_port).collect();
        for server in &mut servers {
            server.peers.clone_from(&peers);
        }
        servers.iter().for_each(Server::spawn);
        servers.iter().for_each(Server::wait);
        servers
    }

    fn new(kind: Kind, configuration: &str) -> Server {
        let dir = tempfile::Builder::new()
            .prefix("again-fleet-backend-")
            .tempdir()
            .expect("a directory")
            .keep();
        let peer_port = free_port();
        Server {
            kind,
            port: free_port(),
            peer_port,
            peers: vec![peer_port],
            dir,
            keeper: Mutex::new(None),
            configuration: configuration.to_owned(),
            certificate: "server.test",
            ssldir: None,
            room: None,
        }
    }

    /// Starts the server again, on the same port and with the same data.
    pub fn run(&self) {
        self.spawn();
        self.wait();
    }

    fn spawn(&self) {
        let command = match self.kind {
            Kind::Etcd => self.etcd(),
            Kind::Nats => self.nats(),
        };
        let _ = fs::remove_file(self.dir.join("pid"));
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&self.dir)
            .args(command)
            .stdin(Stdio::piped())
            .spawn();
        *self.keeper.lock().expect("the keeper") = Some(keeper.expect("sh"));
    }

    fn wait(&self) {
        let answers = || TcpStream::connect(("127.0.0.1", self.port)).ok();
        let answered = ask_for(SHORT, Duration::from_millis(10), answers).is_some();
        assert!(answered, "{:?} does not answer:\n{}", self.kind, self.log());
    }

    /// Paths of the server's certificate and key, the CA's certificates and its revocation lists.
    fn files(&self) -> [String; 4] {
        let name = self.certificate;
        let Some(ssldir) = &self.ssldir else {
            let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
            let files = [&*certificate, &*key, "ca.pem", "crl.pem"];
            return files.map(|file| text(&Ca::get().path(file)));
        };
        let (certificate, key) = (
            format!("certs/{name}.pem"),
            format!("private_keys/{name}.pem"),
        );
        let files = [&*certificate, &*key, "certs/ca.pem", "crl.pem"];
        files.map(|file| text(&ssldir.join(file)))
    }

    fn etcd(&self) -> Vec<String> {
        let [certificate, key, roots, crl] = self.files();
        let peer = |port: &u16| format!("http://127.0.0.1:{port}");
        let peers = peer(&self.peer_port);
        let members: Vec<String> = self
            .peers
            .iter()
            .map(|port| format!("m{port}={}", peer(port)))
            .collect();
        let pairs = [
            ("--name", format!("m{}", self.peer_port)),
            ("--data-dir", text(&self.dir.join("data"))),
            (
                "--listen-client-urls",
                format!("https://127.0.0.1:{}", self.port),
            ),
            (
                "--advertise-client-urls",
                format!("https://localhost:{}", self.port),
            ),
            ("--listen-peer-urls", peers.clone()),
            ("--initial-advertise-peer-urls", peers.clone()),
            ("--initial-cluster", members.join(",")),
            ("--cert-file", certificate),
            ("--key-file", key),
            ("--trusted-ca-file", roots),
            ("--client-crl-file", crl),
            ("--logger", "zap".to_owned()),
        ];
        let mut command = program(self.kind);
        command.push("--client-cert-auth".to_owned());
        command.extend(
            pairs
                .into_iter()
                .flat_map(|(name, value)| [name.to_owned(), value]),
        );
        command.extend(self.configuration.split_whitespace().map(str::to_owned));
        let room = self
            .room
            .map(|room| format!("--quota-backend-bytes={room}"));
        command.extend(room);
        command
    }

    fn nats(&self) -> Vec<String> {
        let [certificate, key, roots, _] = self.files();
        let has_users = self.configuration.contains("authorization");
        let verify = if has_users {
            "verify_and_map"
        } else {
            "verify"
        };
        let room = self.room.map(|room| format!(", max_file_store: {room}"));
        let room = room.unwrap_or_default();
        let configuration = format!(
            "listen: \"127.0.0.1:{}\"\nserver_name: m{}\njetstream {{ store_dir: \"{}\"{room} }}\n\
             tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", ca_file: \"{roots}\", {verify}: true, timeout: 30 }}\n{}\n",
            self.port,
            self.peer_port,
            text(&self.dir.join("data")),
            self.configuration,
        );
        let routes = self
            .peers
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let cluster = format!(
            "cluster {{ name: three, listen: \"127.0.0.1:{}\", routes: [{routes}] }}\n",
            self.peer_port
        );
        let is_alone = self.peers.len() == 1;
        let configuration = if is_alone {
            configuration
        } else {
            configuration + &cluster
        };
        let file = self.dir.join("nats.conf");
        fs::write(&file, configuration).expect("written");
        let mut command = program(self.kind);
        command.extend(["--config".to_owned(), text(&file)]);
        command
    }

    /// Address for clients. It contains a name, because Puppet's certificates have no IP addresses.
    pub fn address(&self) -> String {
        match self.kind {
            Kind::Etcd => format!("https://localhost:{}", self.port),
            Kind::Nats => format!("tls://localhost:{}", self.port),
        }
    }

    /// Kills the server, as `kill -9` does.
    pub fn kill(&self) {
        let mut keeper = self
            .keeper
            .lock()
            .expect("the keeper")
            .take()
            .expect("it runs");
        writeln!(keeper.stdin.take().expect("a pipe")).expect("the keeper");
        keeper.wait().expect("its end");
    }

    /// Copies the server's data; it must not run.
    #[allow(dead_code, reason = "for the suite verbs")]
    pub fn back_up(&self) {
        self.copy("data", "backup");
    }

    /// Restores the copied data; the server must not run.
    #[allow(dead_code, reason = "for the suite verbs")]
    pub fn restore(&self) {
        self.wipe();
        self.copy("backup", "data");
    }

    #[allow(dead_code, reason = "for the suite verbs")]
    fn copy(&self, from: &str, to: &str) {
        assert!(self.keeper.lock().expect("the keeper").is_none(), "it runs");
        let mut copy = Command::new("cp");
        copy.arg("-a")
            .args([from, to].map(|name| self.dir.join(name)));
        assert!(copy.status().expect("cp").success());
    }

    /// Removes the server's data; it must not run.
    pub fn wipe(&self) {
        assert!(self.keeper.lock().expect("the keeper").is_none(), "it runs");
        fs::remove_dir_all(self.dir.join("data")).expect("removed");
    }

    /// Freezes the server with SIGSTOP: the process and its connections remain, but it does
    /// nothing.
    pub fn stop(&self) {
        let pid = self.signal("-STOP");
        // A signal takes time to arrive, at each thread separately.
        let is_stopped = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('T'))
        };
        let tasks = || fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        wait_until(&format!("{pid} to stop"), SHORT, || {
            tasks().all(|task| task.is_ok_and(is_stopped))
        });
    }

    /// Continues a frozen server.
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) -> String {
        let pid = fs::read_to_string(self.dir.join("pid")).expect("a pid");
        let pid = pid.trim().to_owned();
        let sent = Command::new("kill")
            .args([signal, &pid])
            .status()
            .expect("kill");
        assert!(sent.success(), "{signal} to {pid}");
        pid
    }

    /// Runs etcdctl as a node; returns its standard output.
    pub fn etcdctl(&self, node: &str, arguments: &[&str]) -> String {
        let ca = Ca::get();
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg("--endpoints")
            .arg(self.address())
            .args([
                "--cacert".into(),
                ca.path("ca.pem"),
                "--cert".into(),
                ca.path(&format!("{node}.pem")),
            ])
            .args(["--key".into(), ca.path(&format!("{node}.key"))])
            .args(arguments)
            .output()
            .expect("etcdctl");
        assert!(
            done.status.success(),
            "etcdctl {arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).expect("UTF-8")
    }

    /// Makes etcd refuse writes, as if its quota was used up, until `etcdctl alarm disarm`.
    #[allow(dead_code, reason = "for the suites verbs and service")]
    pub fn raise_no_space(&self) {
        use etcd_client::{AlarmAction, AlarmType, Client};
        let tls = tls("web1.test");
        let patience = Duration::from_secs(10);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let raised = runtime.expect("a runtime").block_on(async {
            let channel =
                again_fleet::backend::dial::channel(&[self.address()], Some(&tls), patience);
            let client = Client::from_channel(channel.expect("a channel"), None).await;
            let mut client = client.expect("a client");
            let activate = AlarmAction::Activate;
            client.alarm(activate, AlarmType::Nospace, None).await
        });
        raised.expect("an alarm");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(10)..].join("\n");
            eprintln!("{:?} at {} said last:\n{last}", self.kind, self.port);
        }
        if let Some(mut keeper) = self.keeper.get_mut().expect("the keeper").take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Command that starts a server. An environment variable can name another release
/// (tests/backends/newer).
pub fn program(kind: Kind) -> Vec<String> {
    let (variable, default) = match kind {
        Kind::Etcd => ("ETCD", "etcd"),
        Kind::Nats => ("NATS_SERVER", "nats-server"),
    };
    let words = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    words.split_whitespace().map(str::to_owned).collect()
}

/// TLS settings with which a node connects to a backend.
pub fn tls(node: &str) -> Tls {
    let ca = Ca::get();
    Tls {
        ca: ca.read("ca.pem"),
        crl: ca.read("crl.pem"),
        revocation: Revocation::Chain,
        certificate: ca.read(&format!("{node}.pem")),
        key: ca.read(&format!("{node}.key")),
        refuses_open_servers: false,
    }
}

/// Returns a port below those that the kernel assigns to connections: one of them could get it
/// while a server is being restarted. No other test gets it, in this process or another one: the
/// first user of a port binds an abstract socket name (unix(7)) for it, and keeps it.
pub fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    static TAKEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + (std::process::id().wrapping_mul(97).wrapping_add(tried)) % 20_000;
        let port = u16::try_from(port).expect("a port");
        let name = SocketAddr::from_abstract_name(format!("again-test-port-{port}"));
        let name = UnixListener::bind_addr(&name.expect("a name"));
        if let Ok(name) = name
            && TcpListener::bind(("127.0.0.1", port)).is_ok()
        {
            TAKEN.lock().expect("the names").push(name);
            return port;
        }
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}
