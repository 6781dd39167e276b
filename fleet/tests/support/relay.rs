//! The network between a service and its backend: it can be cut.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;

/// Passes on what comes in at its port, and what is answered, as long as it is whole. It ends with the test program.
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
    /// To this port.
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
                // Where nobody listens, it is closed.
                let _ = came.and_then(|came| way.join(came, port));
            }
        });
        relay
    }

    /// Nothing comes through from now on, in neither direction, and nobody hears of it.
    pub fn cut(&self) {
        *self.way.is_cut.lock().expect("whole") = true;
    }

    /// It is whole again, and what waited comes through late.
    pub fn mend(&self) {
        *self.way.is_cut.lock().expect("whole") = false;
        self.way.mended.notify_all();
    }

    /// It is whole again, but the connections have broken: nobody knows how much of what waited had come through.
    pub fn mend_without_connections(&self) {
        for end in self.way.ends.lock().expect("whole").drain(..) {
            let _ = end.upgrade().map(|end| end.shutdown(Shutdown::Both));
        }
        self.mend();
    }
}

impl Way {
    /// Waits as long as it is cut.
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
