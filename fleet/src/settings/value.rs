//! Values of settings, as written in the file and the environment.

use std::net::IpAddr;

use again_base::model::Span;
pub use again_base::settings::{Setting, Value};
use again_base::settings::{Words, choice, parsed, read_all};
use again_base::toml::Written;
use clap::ValueEnum;

use crate::identity::authority::Revocation;
use crate::policy::accept::{Pattern, Who};
use crate::policy::rule::Resource;
use crate::policy::select::Condition;
use crate::wire::event::Change;
use crate::wire::lineage::MOST_HOPS;
use crate::wire::slot::MOST_SLOTS;
use crate::wire::trigger::{MOST_DELTA, MOST_TTL};

/// Program and arguments, none of them empty.
#[derive(Debug, Default)]
pub struct Command(pub Vec<String>);

impl Setting for Command {
    fn of(written: Written) -> Result<Self, String> {
        let Words(words) = Setting::of(written)?;
        read_all(words).map(Command)
    }
}

again_base::shown_words! {
    /// Backends, which carry triggers between the nodes.
    #[derive(Default, ValueEnum)]
    pub enum Backend {
        /// etcd 3.
        #[default]
        Etcd = "etcd",
        /// NATS with JetStream.
        Nats = "nats",
    }
}

impl Backend {
    /// Whether the backend has slots and locks. On NATS a key that is renewed loses its place in
    /// the order.
    pub const fn supports_slots(self) -> bool {
        matches!(self, Backend::Etcd)
    }
}

/// Authority for values from the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Trust {
    /// Puppet's CA: every value is signed by a node with a certificate.
    Puppet,
    /// The backend: nothing is signed, and every writer is trusted.
    Backend,
}

/// A server of the backend. Its certificate has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address.
    pub host: String,
    /// Port; `None`: the backend's usual one.
    pub port: Option<u16>,
}

impl Endpoint {
    /// Whether the server is on this machine.
    pub fn is_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        address.map_or(self.host == "localhost", |address| address.is_loopback())
    }
}

again_base::values! { choice: Backend Trust Revocation Change }
again_base::values! { parsed: Condition Who Pattern }

impl Value for Resource {
    fn read(text: &str) -> Result<Self, String> {
        Resource::read(text)
    }
}

impl Value for Endpoint {
    fn read(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("'{text}' is no server: {why}; write HOST or HOST:PORT");
        // An IPv6 address is in brackets.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = port.map(str::parse).transpose();
        let port = port.map_err(|_| wrong("the port is no number up to 65535"))?;
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_host = match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let may = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
                !host.is_empty() && host.bytes().all(may)
            }
        };
        if !is_host {
            return Err(wrong("that is neither a name nor an address"));
        }
        let host = address.unwrap_or(host).to_owned();
        Ok(Endpoint { host, port })
    }
}

/// Durations, each with its range.
macro_rules! spans {
    ($($name:ident $least:expr, $most:expr;)*) => {$(
        #[derive(Debug, Clone, Copy)]
        pub struct $name(pub Span);

        impl Value for $name {
            const WANTED: &'static str = "a duration: whole seconds, or \"50ms\", \"90s\", \"2m\", \"1h\"";

            fn read(text: &str) -> Result<Self, String> {
                span(text, $least, $most).map($name)
            }
        }
    )*};
}

spans! {
    Ttl Span::from_secs(1), Span::from_nanos(MOST_TTL * 1_000_000);
    Skew Span::ZERO, Span::from_secs(3600);
    MaxWait Span::from_secs(1), Span::from_secs(86_400);
    Spread Span::ZERO, Span::from_secs(60);
    Delta Span::ZERO, Span::from_nanos(MOST_DELTA * 1_000_000);
    Timeout Span::from_secs(1), Span::from_secs(3600);
}

fn span(text: &str, least: Span, most: Span) -> Result<Span, String> {
    let millis = text.strip_suffix("ms").map(str::parse::<u64>);
    let span = match millis {
        Some(Ok(millis)) => Span::from_nanos(millis.saturating_mul(1_000_000)),
        _ => text.parse::<Span>().map_err(|e| e.to_string())?,
    };
    if span < least || span > most {
        return Err(format!("'{text}' is not from {least} to {most}"));
    }
    Ok(span)
}

/// Whole numbers from 1 to a maximum.
macro_rules! numbers {
    ($($name:ident($type:ty) $most:expr;)*) => {$(
        pub struct $name(pub $type);

        impl Value for $name {
            const WANTED: &'static str = "a whole number";

            fn read(text: &str) -> Result<Self, String> {
                let number = text.parse().ok().filter(|number| (1..=$most).contains(number));
                let wrong = || format!("'{text}' is not a whole number from 1 to {}", $most);
                number.map($name).ok_or_else(wrong)
            }
        }
    )*};
}

numbers! {
    Slots(u32) MOST_SLOTS;
    Hops(usize) MOST_HOPS;
    Percent(u32) 100;
}

/// A table of the file: names, each with a list of patterns.
#[derive(Default)]
pub struct Table(pub Vec<(Who, Vec<Pattern>)>);

impl Setting for Table {
    fn of(written: Written) -> Result<Self, String> {
        let Written::Table(rows) = written else {
            return Err("expected a table of lists".to_owned());
        };
        let row = |(who, whom): (String, Vec<String>)| Ok((Who::read(&who)?, read_all(whom)?));
        rows.into_iter()
            .map(row)
            .collect::<Result<_, String>>()
            .map(Table)
    }
}
