//! A Puppet CA, for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Files that `ca.rb` makes: those of a Puppet CA and its nodes, and invalid ones.
pub struct Ca {
    dir: PathBuf,
    /// Process that removes the directory when its standard input ends, thus when this program has
    /// ended in any way.
    _broom: Child,
}

impl Ca {
    /// Returns the files of this test program, made at the first call; that takes two seconds.
    pub fn get() -> &'static Ca {
        static CA: OnceLock<Ca> = OnceLock::new();
        CA.get_or_init(|| {
            let dir = tempfile::Builder::new()
                .prefix("again-fleet-ca-")
                .tempdir()
                .expect("a directory");
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/ca.rb");
            let made = Command::new("ruby")
                .arg(script)
                .arg(dir.path())
                .output()
                .expect("ruby");
            assert!(
                made.status.success(),
                "no CA: {}",
                String::from_utf8_lossy(&made.stderr)
            );
            let mut broom = Command::new("sh");
            broom.args([
                "-c",
                "trap '' INT HUP; cat >/dev/null; rm -rf \"$1\"",
                "broom",
            ]);
            let broom = broom.arg(dir.path()).stdin(Stdio::piped()).spawn();
            Ca {
                dir: dir.keep(),
                _broom: broom.expect("sh"),
            }
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}
