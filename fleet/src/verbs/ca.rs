//! `again-fleet ca`: certificates for nodes that have no Puppet server, from a CA in a directory.
//!
//! The CA consists of `ca.pem`, `ca_key.pem` and `crl.pem`. `issued` has a line `SERIAL NODE` for
//! each certificate, written before the certificate is signed. `nodes/NODE` has the files for the
//! node's `ssldir`. Files and directories are created under a temporary name and renamed, and
//! directories are renamed before they are removed, so that each is either complete or absent. A
//! command locks the directory.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use again_base::layout::say;
use again_base::model::Walltime;
use again_base::sys::clock::walltime;
use again_base::sys::file::{OnDisk, atomic_write, read_named, rename, sync};
use again_base::sys::flock::lock;
use again_base::sys::localtime::local;
use rand::RngExt;

use super::{Exit, Problem};
use crate::cli::{Ca, CaCommand};
use crate::identity::files::LARGEST;
use crate::identity::issuer::{self, Issuer, Revocations};
use crate::wire::name::Node;

/// Modes of public files and of files that only the owner may read.
const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;
/// Directories of a node that is being created or removed: no certname begins with a dot.
const NEW: &str = "nodes/.new";
const OLD: &str = "nodes/.old";
/// Time to wait for another command that uses the same CA.
const PATIENCE: Duration = Duration::from_secs(10);

/// Creates a CA, signs or revokes.
///
/// # Errors
/// The CA cannot be used, or a node has a certificate already, has none, or must not have one.
pub fn main(args: &Ca) -> Result<Exit, Problem> {
    let now = (walltime().millis() / 1000).cast_signed();
    match &args.command {
        CaCommand::Create => create(&args.dir, now)?,
        CaCommand::Sign { nodes } => {
            nodes.iter().try_for_each(may_have_certificate)?;
            let ca = Directory::open(&args.dir)?;
            for node in nodes {
                let made = ca.sign(node, now)?;
                say(&format!("again-fleet: signed {node}: {}", made.display()))?;
            }
        }
        CaCommand::Revoke { nodes } => {
            let ca = Directory::open(&args.dir)?;
            for node in nodes {
                ca.revoke(node, now)?;
                let list = ca.file("crl.pem");
                say(&format!(
                    "again-fleet: revoked {node}; copy {} to all nodes",
                    list.display()
                ))?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Creates the CA under a temporary name and renames it. The target may be an empty directory, and
/// nothing else.
fn create(dir: &Path, now: i64) -> Result<(), Problem> {
    let name = dir.file_name();
    let name = name.ok_or_else(|| Problem::Usage("--dir has to end with a name".to_owned()))?;
    let (ca, key) = Issuer::create(rand::rng().random(), now)?;
    let crl = ca.list(&Revocations::default(), now)?;
    let files: [(&str, &str, u32); 4] = [
        ("ca.pem", &ca.certificate, PUBLIC),
        ("ca_key.pem", &key, SECRET),
        ("crl.pem", &crl, PUBLIC),
        ("issued", "", SECRET),
    ];
    let mut new = name.to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = dir.with_file_name(new);
    if new.exists() {
        let why = "an interrupted 'create' has left it there: remove it";
        return Err(cannot("make", &new, why));
    }
    let made = make_directory(&new, 0o700, &files)
        .and_then(|()| make_directory(&new.join("nodes"), 0o700, &[]))
        .and_then(|()| rename(&new, dir));
    if let Err(e) = made {
        let _ = fs::remove_dir_all(&new);
        return Err(match e.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                let dir = dir.display();
                Problem::Failed(format!(
                    "{dir} is not empty: name another directory with --dir"
                ))
            }
            _ => cannot("make", dir, e),
        });
    }
    let (dir, ends) = (dir.display(), local(at(ca.ends)));
    say(&format!(
        "again-fleet: made a CA in {dir}, valid until {ends}"
    ))?;
    Ok(())
}

/// Rejects names with another meaning to etcd, to Puppet or in the directories.
fn may_have_certificate(node: &Node) -> Result<(), Problem> {
    let why = match node.as_str() {
        "root" => "etcd takes it for its superuser",
        "ca" => "Puppet keeps the CA's certificate under this name",
        name if name.starts_with('.') => "it begins with a dot",
        _ => return Ok(()),
    };
    Err(Problem::Usage(format!(
        "'{node}' cannot be the name of a node: {why}"
    )))
}

/// Directory of a CA, locked.
struct Directory {
    path: PathBuf,
    issuer: Issuer,
    _lock: File,
}

impl Directory {
    fn open(path: &Path) -> Result<Directory, Problem> {
        let opened = File::open(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Problem::Failed(format!(
                "there is no CA in {}: make one with 'again-fleet ca create'",
                path.display()
            )),
            _ => cannot("read", path, e),
        })?;
        lock(&opened, || path.to_owned(), PATIENCE).map_err(|e| cannot("lock", path, e))?;
        let (certificate, key) = (read(&path.join("ca.pem"))?, read(&path.join("ca_key.pem"))?);
        let ca = Directory {
            path: path.to_owned(),
            issuer: Issuer::read(certificate, &key)?,
            _lock: opened,
        };
        ca.clear(NEW)?;
        ca.clear(OLD)?;
        Ok(ca)
    }

    /// Removes a directory that an interrupted command has left.
    fn clear(&self, name: &str) -> Result<(), Problem> {
        let path = self.file(name);
        fs::remove_dir_all(&path).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(cannot("remove", &path, e)),
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Directory of a node.
    fn node(&self, node: &Node) -> PathBuf {
        self.path.join("nodes").join(node.as_str())
    }

    /// Creates a node's directory with its certificate and key, and returns the path.
    fn sign(&self, node: &Node, now: i64) -> Result<PathBuf, Problem> {
        let made = self.node(node);
        if made.exists() || !self.valid(node, &self.revocations()?)?.is_empty() {
            let dir = self.path.display();
            return Err(Problem::Failed(format!(
                "{node} has a certificate; to renew it, first run 'again-fleet ca --dir {dir} revoke {node}'"
            )));
        }
        let issued = self.issuer.issue(node, self.new_serial(node)?, now)?;
        let file = format!("{node}.pem");
        let certificates: [(&str, &str, u32); 2] = [
            ("ca.pem", &self.issuer.certificate, PUBLIC),
            (&file, &issued.certificate, PUBLIC),
        ];
        let new = self.file(NEW);
        make_directory(&new, 0o700, &[])
            // A link, so that the newest list is copied even if another node is revoked first.
            .and_then(|()| symlink("../../crl.pem", new.join("crl.pem")))
            .and_then(|()| make_directory(&new.join("certs"), 0o755, &certificates))
            .and_then(|()| {
                let key = [(&*file, &*issued.key, SECRET)];
                make_directory(&new.join("private_keys"), 0o750, &key)
            })
            .and_then(|()| sync(&File::open(&new)?))
            .and_then(|()| rename(&new, &made))
            .map_err(|e| cannot("make", &made, e))?;
        Ok(made)
    }

    fn revocations(&self) -> Result<Revocations, Problem> {
        Ok(Revocations::read(read(&self.file("crl.pem"))?.as_bytes())?)
    }

    /// Serial number and node of each issued certificate.
    fn issued(&self) -> Result<Vec<(u64, String)>, Problem> {
        let path = self.file("issued");
        let parts = |line: &str| {
            let (serial, node) = line.split_once(' ')?;
            Some((u64::from_str_radix(serial, 16).ok()?, node.to_owned()))
        };
        let issued = read(&path)?.lines().map(parts).collect::<Option<_>>();
        issued.ok_or_else(|| cannot("use", &path, "a line is not 'SERIAL NODE'"))
    }

    /// Serial numbers of a node's certificates that are not revoked.
    fn valid(&self, node: &Node, revocations: &Revocations) -> Result<Vec<u64>, Problem> {
        let issued = self.issued()?.into_iter();
        let of_node = issued.filter(|(_, name)| name == node.as_str());
        let serials = of_node.map(|(serial, _)| serial);
        Ok(serials.filter(|one| !revocations.has(*one)).collect())
    }

    /// Serial number for a node's certificate, recorded in `issued`. It is random, so that a CA
    /// restored from a backup repeats none. It is in a range that openssl prints with the same
    /// number of digits.
    fn new_serial(&self, node: &Node) -> Result<u64, Problem> {
        let mut issued = self.issued()?;
        let serial = loop {
            let serial = rand::rng().random_range(1 << 56..1 << 63);
            if issued.iter().all(|(known, _)| *known != serial) {
                break serial;
            }
        };
        issued.push((serial, node.to_string()));
        let lines = issued.iter();
        let lines = lines.map(|(serial, node)| format!("{serial:016X} {node}\n"));
        let path = self.file("issued");
        replace(&path, &lines.collect::<String>(), SECRET)?;
        Ok(serial)
    }

    /// Puts a node's certificates on the revocation list, and removes its directory.
    fn revoke(&self, node: &Node, now: i64) -> Result<(), Problem> {
        let (made, mut revocations) = (self.node(node), self.revocations()?);
        let mut serials = self.valid(node, &revocations)?;
        let certificate = made.join("certs").join(format!("{node}.pem"));
        if certificate.exists() {
            let serial = issuer::serial(read(&certificate)?.as_bytes(), node);
            serials.push(serial.map_err(|e| cannot("use", &certificate, e))?);
        }
        if serials.is_empty() {
            return Err(Problem::Failed(format!(
                "no certificate of {node} that is not revoked is in {}",
                self.file("issued").display()
            )));
        }
        for serial in serials {
            revocations.add(serial, now);
        }
        let list = self.issuer.list(&revocations, now)?;
        replace(&self.file("crl.pem"), &list, PUBLIC)?;
        fs::rename(&made, self.file(OLD)).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(cannot("remove", &made, e)),
        })?;
        self.clear(OLD)
    }
}

fn at(seconds: i64) -> Walltime {
    Walltime::from_millis(seconds.cast_unsigned() * 1000)
}

fn cannot(what: &str, path: &Path, e: impl Display) -> Problem {
    Problem::Failed(format!("cannot {what} {}: {e}", path.display()))
}

fn read(path: &Path) -> Result<String, Problem> {
    let bytes = read_named(path, LARGEST).map_err(|e| cannot("read", path, e))?;
    String::from_utf8(bytes).map_err(|_| cannot("read", path, "it is not text"))
}

/// Makes a directory with these files: name, text and mode of each.
fn make_directory(path: &Path, mode: u32, files: &[(&str, &str, u32)]) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    for (name, text, mode) in files {
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(*mode);
        let mut file = options.open(path.join(name))?;
        file.write_all(text.as_bytes())?;
        sync(&file)?;
    }
    sync(&File::open(path)?)
}

/// Replaces the text of a file.
fn replace(path: &Path, text: &str, mode: u32) -> Result<(), Problem> {
    atomic_write(path, text.as_bytes(), mode, OnDisk::Name)
        .map(drop)
        .map_err(|e| cannot("write", path, e))
}
