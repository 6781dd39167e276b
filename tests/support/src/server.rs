//! Real puppetserver on a loopback port, started once per test program.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::process::Process;
use super::puppet::{PuppetCommand, copy_tree};
use super::scratch::Scratch;
use super::{repository, rig_file, text, wait_for};

/// Puppet server. Each test has an environment of its own on it, named after the test's node.
pub struct Server {
    pub port: u16,
    dir: PathBuf,
    /// Process that keeps the server running until a pipe closes, if this program has started it.
    keeper: Option<Mutex<Child>>,
}

/// Variable that names a directory where another test program runs a server for this one, with
/// [`Server::serve`].
const ELSEWHERE: &str = "RIG_SERVER";

const SERVICES: &str = "/etc/puppet/puppetserver/services.d";
const CONFIGURATION: &str = "/etc/puppet/puppetserver/conf.d";

impl Server {
    /// Returns the server of this test program, started at the first call; that takes about half a
    /// minute and half a gigabyte.
    pub fn get() -> &'static Server {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| match std::env::var_os(ELSEWHERE) {
            Some(dir) if !dir.is_empty() => Server::elsewhere(PathBuf::from(dir)),
            _ => Server::with(|_| ()),
        })
    }

    /// Starts a server for this test alone, with what the function puts into its directory first.
    /// Programs in `bin` there take precedence.
    pub fn with(prepare: impl FnOnce(&Path)) -> Server {
        let dir = tempfile::Builder::new()
            .prefix("again-test-support-server-")
            .tempdir();
        Server::start(dir.expect("a directory").keep(), prepare)
    }

    /// Runs a server for other programs in the directory that RIG_SERVER names, until standard
    /// input ends.
    pub fn serve() {
        let shared = PathBuf::from(std::env::var_os(ELSEWHERE).expect(ELSEWHERE));
        let dir = shared.join("server");
        fs::create_dir_all(&dir).expect("a directory");
        let server = Server::start(dir, |_| ());
        fs::write(shared.join("port"), server.port.to_string()).expect("the port");
        fs::write(shared.join("ready"), "").expect("the mark");
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("standard input");
        drop(server);
    }

    fn elsewhere(shared: PathBuf) -> Server {
        Server {
            port: fs::read_to_string(shared.join("port"))
                .ok()
                .and_then(|port| port.parse().ok())
                .unwrap_or_else(|| panic!("no server in {}", shared.display())),
            dir: shared.join("server"),
            keeper: None,
        }
    }

    fn start(dir: PathBuf, prepare: impl FnOnce(&Path)) -> Server {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port")
            .port();
        super::claim(&dir);
        configure(&dir, port);
        prepare(&dir);
        let mut keeper = Command::new("sh")
            .arg(rig_file("server.sh"))
            .arg(&dir)
            .args([
                "java",
                "-Xms256m",
                "-Xmx768m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
            ])
            .arg("-Djruby.logger.class=com.puppetlabs.jruby_utils.jruby.Slf4jLogger")
            .args([
                "-Djruby.lib=/usr/share/jruby/lib",
                "-jar",
                "/usr/share/puppetserver/puppetserver.jar",
            ])
            .args([
                "--config",
                &text(dir.join("conf.d")),
                "--bootstrap-config",
                &text(dir.join("services.d")),
            ])
            .args(["--restart-file", &text(dir.join("run/restart"))])
            .env_clear()
            .envs([
                (
                    "PATH",
                    &*format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", text(&dir)),
                ),
                ("LANG", "C.UTF-8"),
                ("HOME", &text(dir.join("var"))),
            ])
            .current_dir("/")
            // The process needs its own group: signals of the terminal and of `timeout` must not
            // reach it before it has cleaned up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let log = || {
            let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
            format!("{}\n{}", read("log/output.log"), read("log/server.log"))
        };
        let pid = wait_for("the server's pid", crate::SHORT, || {
            fs::read_to_string(dir.join("pid"))
                .ok()?
                .trim()
                .parse()
                .ok()
        });
        let process =
            Process::now(pid).unwrap_or_else(|| panic!("puppetserver did not start:\n{}", log()));
        let end = std::time::Instant::now() + Duration::from_secs(600);
        while fs::read(dir.join("run/restart"))
            .unwrap_or_default()
            .first()
            != Some(&b'1')
        {
            if !process.alive() || std::time::Instant::now() > end {
                let log = log();
                drop(keeper.stdin.take());
                let _ = keeper.wait();
                panic!("puppetserver is not ready:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Server {
            port,
            dir,
            keeper: Some(Mutex::new(keeper)),
        }
    }

    /// Returns a path in the server's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log/server.log")).unwrap_or_default()
    }

    /// Gives `node` an environment of its own with this manifest, and makes the scratch directory's
    /// puppet its agent.
    pub fn enrol<'a>(
        &self,
        scratch: &'a Scratch,
        node: &str,
        manifest: &str,
        more_conf: &str,
    ) -> Enrolled<'a> {
        let environment = self.dir.join("code/environments").join(node);
        fs::create_dir_all(environment.join("manifests")).expect("a directory");
        copy_tree(
            &repository().join("puppet-module"),
            &environment.join("modules/common"),
        );
        copy_tree(&rig_file("module"), &environment.join("modules/rig"));
        fs::write(environment.join("manifests/site.pp"), manifest).expect("site.pp");
        scratch.puppet_conf(&format!(
            "certname = {node}.example\nkeylength = 2048\n[agent]\nserver = localhost\nserverport = {}\nenvironment = {node}\n{more_conf}",
            self.port
        ));
        Enrolled { scratch }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            let mut keeper = keeper.into_inner().expect("the keeper");
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

/// Agent of the server.
pub struct Enrolled<'a> {
    scratch: &'a Scratch,
}

impl Enrolled<'_> {
    /// Prepares `puppet agent --confdir … WORDS`.
    pub fn command(&self, words: &[&str]) -> PuppetCommand {
        let conf = text(self.scratch.path("puppet/conf"));
        self.scratch
            .prepare(&[&["puppet", "agent", "--confdir", &conf], words].concat())
    }
}

/// Writes the server's configuration, based on Debian's where that is long and contains no paths.
fn configure(dir: &Path, port: u16) {
    let root = text(dir);
    for sub in [
        "conf.d",
        "services.d",
        "puppet",
        "code/environments/production/manifests",
        "var",
        "run",
        "log",
    ] {
        fs::create_dir_all(dir.join(sub)).expect("a directory");
    }
    for file in ["ca.conf", "web-routes.conf", "auth.conf", "metrics.conf"] {
        let from = Path::new(CONFIGURATION).join(file);
        fs::copy(&from, dir.join("conf.d").join(file))
            .unwrap_or_else(|e| panic!("{}: {e}: install puppetserver", from.display()));
    }
    fs::copy(
        Path::new(SERVICES).join("ca.cfg"),
        dir.join("services.d/ca.cfg"),
    )
    .expect("ca.cfg");
    // Without the service that looks for updates on the Internet.
    let services =
        fs::read_to_string(Path::new(SERVICES).join("bootstrap.cfg")).expect("bootstrap.cfg");
    let services: Vec<&str> = services
        .lines()
        .filter(|line| !line.contains("analytics"))
        .collect();
    let files = BTreeMap::from([
        ("services.d/bootstrap.cfg", services.join("\n")),
        (
            "logback.xml",
            format!(
                "<configuration><appender name=\"F\" class=\"ch.qos.logback.core.FileAppender\"><file>{root}/log/server.log</file>\
                 <encoder><pattern>%d %-5p [%c{{2}}] %m%n</pattern></encoder></appender>\
                 <root level=\"info\"><appender-ref ref=\"F\"/></root></configuration>\n"
            ),
        ),
        (
            "conf.d/global.conf",
            format!("global: {{ logging-config: {root}/logback.xml }}\n"),
        ),
        // With TLS 1.3 ruby 3.1 waits half a minute for a session ticket in an agent's first run.
        (
            "conf.d/webserver.conf",
            format!(
                "webserver: {{ client-auth: want, ssl-host: 127.0.0.1, ssl-port: {port}, ssl-protocols: [TLSv1.2] }}\n"
            ),
        ),
        // The server compiles a few catalogs only, too few for compiling its ruby to pay off.
        (
            "conf.d/puppetserver.conf",
            format!(
                "jruby-puppet: {{\n  ruby-load-path: [/usr/lib/puppetserver/ruby/vendor_ruby]\n  gem-home: {root}/var/jruby-gems\n  \
                 gem-path: [\"{root}/var/jruby-gems\", \"/usr/lib/puppetserver/vendored-jruby-gems\"]\n  \
                 server-conf-dir: {root}/puppet\n  server-code-dir: {root}/code\n  server-var-dir: {root}/var\n  \
                 server-run-dir: {root}/run\n  server-log-dir: {root}/log\n  max-active-instances: 1\n  compile-mode: off\n}}\n"
            ),
        ),
        (
            "puppet/puppet.conf",
            format!(
                "[main]\nssldir = {root}/puppet/ssl\ncodedir = {root}/code\n[server]\ncertname = localhost\n\
                 dns_alt_names = localhost\ncadir = {root}/ca\nautosign = true\nkeylength = 2048\nreports =\nstoreconfigs = false\nenvironment_timeout = 0\n"
            ),
        ),
        ("run/restart", "0".to_owned()),
    ]);
    for (file, content) in files {
        fs::write(dir.join(file), content).expect(file);
    }
}
