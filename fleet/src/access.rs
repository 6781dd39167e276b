//! Access to the backend, from the settings and the current files.

use std::path::Path;

use crate::backend::{Tls, tls};
use crate::identity::authority::Revocation;
use crate::identity::files;
use crate::policy::rule::Rule;
use crate::settings::{Backend, Endpoint, Settings, Trust};
use crate::wire::name::{Namespace, Node};

/// The backend's servers, and this node's identity.
#[derive(Clone)]
pub struct Access {
    /// Type of the backend.
    pub backend: Backend,
    /// Addresses of the servers, as the backend's client expects them.
    pub servers: Vec<String>,
    /// Certificates; `None` without TLS.
    pub tls: Option<Tls>,
    /// Certname of this node.
    pub node: Node,
    /// Name of the fleet.
    pub namespace: Namespace,
    /// Rules with which this node reacts to events; without any, it does not watch events. If the
    /// rules change, all events are read again.
    pub rules: Vec<Rule>,
    /// Whether this node is a candidate for a lock, and watches the locks.
    pub has_locks: bool,
}

impl Access {
    /// Access from these settings; reads the certificate files.
    ///
    /// # Errors
    /// `endpoints` is empty, the certname is not known, or a file cannot be read.
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

    /// Checks that the certificates are usable.
    ///
    /// # Errors
    /// A certificate, a revocation list or the key cannot be used.
    pub fn checked(self) -> Result<Access, String> {
        let configured = self.tls.as_ref().map(tls::configuration).transpose();
        configured.map(|_| self).map_err(|e| e.to_string())
    }

    /// Whether a connection that was made with `other` is usable for this access.
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
        // Such a server would let everyone write values, which this node trusts without signatures.
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
