//! How the backend is reached, by the settings and the files as they are now.

use std::path::Path;

use crate::backend::{Tls, tls};
use crate::identity::authority::Revocation;
use crate::identity::files;
use crate::policy::rule::Rule;
use crate::settings::{Backend, Endpoint, Settings, Trust};
use crate::wire::name::{Namespace, Node};

/// The backend's servers, and who this node is to them.
#[derive(Clone)]
pub struct Access {
    /// Which kind.
    pub backend: Backend,
    /// Their addresses, as the backend's client wants them.
    pub servers: Vec<String>,
    /// Certificates, unless nothing is encrypted.
    pub tls: Option<Tls>,
    /// This node.
    pub node: Node,
    /// The fleet.
    pub namespace: Namespace,
    /// By which this node reacts to events; without any it does not look at them. For other rules all of them are looked at anew.
    pub rules: Vec<Rule>,
    /// Whether this node is a candidate for any lock, and looks who holds them.
    pub has_locks: bool,
}

impl Access {
    /// By these settings; the files are read.
    ///
    /// # Errors
    /// Nothing says where the backend is, or a file cannot be read.
    pub fn new(settings: &Settings) -> Result<Access, String> {
        let Settings {
            backend,
            endpoints,
            tls,
            namespace,
            ..
        } = settings;
        if endpoints.is_empty() {
            return Err("it is not set where the backend is; set endpoints".to_owned());
        }
        let servers = endpoints.iter().map(|one| address(*backend, *tls, one));
        Ok(Access {
            backend: *backend,
            servers: servers.collect(),
            tls: tls.then(|| certificates(settings)).transpose()?,
            node: settings.certname().map_err(|e| e.to_string())?.clone(),
            namespace: namespace.clone(),
            rules: Vec::new(),
            has_locks: false,
        })
    }

    /// The same, if its certificates can be used.
    ///
    /// # Errors
    /// A certificate, a revocation list or the key cannot be used.
    pub fn checked(self) -> Result<Access, String> {
        let configured = self.tls.as_ref().map(tls::configuration).transpose();
        configured.map(|_| self).map_err(|e| e.to_string())
    }

    /// Whether a connection that was made by the other does for this.
    pub fn is(&self, other: &Access) -> bool {
        let parts = |one: &Access| {
            let tls = one.tls.clone().map(|tls| {
                let files = (tls.ca, tls.crl, tls.certificate, tls.key);
                (files, tls.revocation, tls.refuses_open_servers)
            });
            (one.backend, one.servers.clone(), tls)
        };
        parts(self) == parts(other)
            && self.rules == other.rules
            && (!self.has_locks || other.has_locks)
    }
}

fn address(backend: Backend, tls: bool, endpoint: &Endpoint) -> String {
    let (scheme, usual) = match (backend, tls) {
        (Backend::Etcd, true) => ("https", 2379),
        (Backend::Etcd, false) => ("http", 2379),
        (Backend::Nats, true) => ("tls", 4222),
        (Backend::Nats, false) => ("nats", 4222),
    };
    let port = endpoint.port.unwrap_or(usual);
    let host = &endpoint.host;
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}

fn certificates(settings: &Settings) -> Result<Tls, String> {
    let paths = settings.identity().map_err(|e| e.to_string())?;
    let read = |path: &Path| files::bytes(path).map_err(|e| e.to_string());
    Ok(Tls {
        ca: read(&paths.ca)?,
        crl: match paths.revocation {
            Revocation::Off => Vec::new(),
            Revocation::Chain | Revocation::Leaf => read(&paths.crl)?,
        },
        revocation: paths.revocation,
        certificate: read(&paths.certificate)?,
        key: read(&paths.key)?,
        // The word of whoever can write there is believed.
        refuses_open_servers: settings.trust == Trust::Backend,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_revocation_list_needs_a_new_connection() {
        let access = |list: &[u8]| Access {
            backend: Backend::Etcd,
            servers: Vec::new(),
            tls: Some(Tls {
                ca: Vec::new(),
                crl: list.to_vec(),
                revocation: Revocation::Chain,
                certificate: Vec::new(),
                key: Vec::new(),
                refuses_open_servers: false,
            }),
            node: "web1.test".parse().expect("a certname"),
            namespace: "test".parse().expect("a namespace"),
            rules: Vec::new(),
            has_locks: false,
        };
        assert!(access(b"one").is(&access(b"one")));
        assert!(!access(b"two").is(&access(b"one")));
        let why = access(b"one").checked().err().expect("no list");
        assert!(why.contains("certificate"), "{why}");
    }

    #[test]
    fn each_backend_has_its_scheme_and_its_port() {
        let at = |backend, tls, host: &str, port| {
            let host = host.to_owned();
            address(backend, tls, &Endpoint { host, port })
        };
        assert_eq!(at(Backend::Etcd, true, "e", None), "https://e:2379");
        assert_eq!(at(Backend::Etcd, false, "e", Some(1)), "http://e:1");
        assert_eq!(at(Backend::Nats, true, "e", None), "tls://e:4222");
        assert_eq!(at(Backend::Nats, false, "::1", None), "nats://[::1]:4222");
    }
}
