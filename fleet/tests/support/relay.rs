//! Network between a service and its backend, which a test can cut.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;

/// Relay that forwards data in both directions between its port and the backend's, unless it is
/// cut. It ends with the test program.
pub struct Relay {
    pub port: u16,
    way: Arc<Way>,
}

#[derive(Default)]
struct Way {
    is_cut: Mutex<bool>,
    mended: Condvar,
    ends: Mutex<Vec<Weak<TcpStream>>>,
}

impl Relay {
    /// Starts a relay to this port.
    pub fn to(port: u16) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let relay = Relay {
            port: listener.local_addr().expect("an address").port(),
            way: Arc::default(),
        };
        let way = Arc::clone(&relay.way);
        thread::spawn(move || {
            for came in listener.incoming() {
                way.passes();
                // If nothing listens on the port, the connection is closed.
                let _ = came.and_then(|came| way.join(came, port));
            }
        });
        relay
    }

    /// Cuts the network: from now on no data passes in either direction, and neither end gets an
    /// error.
    pub fn cut(&self) {
        *self.way.is_cut.lock().expect("whole") = true;
    }

    /// Restores the network; delayed data arrives late.
    pub fn mend(&self) {
        *self.way.is_cut.lock().expect("whole") = false;
        self.way.mended.notify_all();
    }

    /// Restores the network, but breaks the connections, so that neither end knows how much of the
    /// delayed data has arrived.
    pub fn mend_without_connections(&self) {
        for end in self.way.ends.lock().expect("whole").drain(..) {
            let _ = end.upgrade().map(|end| end.shutdown(Shutdown::Both));
        }
        self.mend();
    }
}

impl Way {
    /// Waits while the network is cut.
    fn passes(&self) {
        let is_cut = self.is_cut.lock().expect("whole");
        let mended = self.mended.wait_while(is_cut, |is_cut| *is_cut);
        drop(mended.expect("whole"));
    }

    fn join(self: &Arc<Way>, came: TcpStream, port: u16) -> io::Result<()> {
        let goes = TcpStream::connect(("127.0.0.1", port))?;
        let [came, goes] = [came, goes].map(Arc::new);
        for (from, to) in [(&came, &goes), (&goes, &came)] {
            from.set_nodelay(true)?;
            let (way, from, to) = (Arc::clone(self), Arc::clone(from), Arc::clone(to));
            let mut ends = self.ends.lock().expect("whole");
            ends.retain(|end| end.strong_count() > 0);
            ends.push(Arc::downgrade(&from));
            thread::spawn(move || {
                let _ = way.pass_on(&from, &to);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
        Ok(())
    }

    fn pass_on(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut bytes = [0; 1 << 14];
        loop {
            let length = from.read(&mut bytes)?;
            if length == 0 {
                return Ok(());
            }
            self.passes();
            to.write_all(&bytes[..length])?;
        }
    }
}
