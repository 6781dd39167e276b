//! Connections to etcd's servers, for the etcd client, whose own connector would need a second TLS
//! library.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Channel;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use super::{Error, Tls};

/// Name of HTTP/2 in the ALPN list of a TLS handshake.
const HTTP_2: &[u8] = b"h2";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

struct Server {
    host: String,
    port: u16,
    /// Name that the server's certificate must have.
    name: ServerName<'static>,
}

impl Server {
    fn read(endpoint: &str) -> Option<Server> {
        let uri: Uri = endpoint.parse().ok()?;
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).ok()?;
        let port = uri.port_u16()?;
        Some(Server { host, port, name })
    }

    async fn dial(&self, tls: Option<&TlsConnector>) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(match tls {
            Some(tls) => Box::new(tls.connect(self.name.clone(), stream).await?),
            None => Box::new(stream),
        })
    }
}

/// Channel to the first reachable server among `endpoints` (`https://HOST:PORT` each). Each server
/// gets `patience` to answer. The channel connects when it is used, and reconnects when the
/// connection is lost.
///
/// # Errors
/// An address is not a server's, or a certificate file cannot be used.
pub fn channel(
    endpoints: &[String],
    tls: Option<&Tls>,
    patience: Duration,
) -> Result<Channel, Error> {
    let wrong = |endpoint: &String| Error::Unreachable(format!("'{endpoint}' is no server"));
    let servers = endpoints
        .iter()
        .map(|endpoint| Server::read(endpoint).ok_or_else(|| wrong(endpoint)));
    let servers: Arc<[Server]> = servers.collect::<Result<_, Error>>()?;
    let tls = tls.map(super::tls::configuration).transpose();
    let tls = tls.map_err(|e| Error::Unreachable(e.to_string()))?;
    let tls = tls.map(|mut tls| {
        tls.alpn_protocols = vec![HTTP_2.to_vec()];
        TlsConnector::from(Arc::new(tls))
    });
    let first = endpoints.first().cloned().unwrap_or_default();
    let endpoint = Endpoint::from_shared(first.clone()).map_err(|_| wrong(&first))?;
    let dial = service_fn(move |_: Uri| {
        let (servers, tls) = (Arc::clone(&servers), tls.clone());
        async move {
            let mut why = io::Error::from(io::ErrorKind::NotFound);
            for server in servers.iter() {
                match timeout(patience, server.dial(tls.as_ref())).await {
                    Ok(Ok(stream)) => return Ok(TokioIo::new(stream)),
                    Ok(Err(e)) => why = e,
                    Err(_) => why = io::ErrorKind::TimedOut.into(),
                }
            }
            Err(why)
        }
    });
    Ok(Channel::Tonic(endpoint.connect_with_connector_lazy(dial)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_host_and_a_port() {
        for (endpoint, host, port) in [
            ("https://etcd1.example.com:2379", "etcd1.example.com", 2379),
            ("http://localhost:1", "localhost", 1),
            ("https://10.0.0.1:2379", "10.0.0.1", 2379),
            ("https://[2001:db8::1]:2379", "2001:db8::1", 2379),
        ] {
            let server = Server::read(endpoint).expect(endpoint);
            assert_eq!((server.host.as_str(), server.port), (host, port));
            assert_eq!(server.name.to_str(), host);
        }
        for wrong in [
            "",
            "https://",
            "https://host",
            "https://a b:1",
            "https://-:1",
        ] {
            assert!(Server::read(wrong).is_none(), "{wrong}");
        }
    }
}
