//! Bytes in JSON: a string if they are UTF-8, otherwise a list of numbers.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Argument, environment entry or path, of any bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Wire {
    Text(String),
    Raw(Vec<u8>),
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_seq(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Bytes(match Wire::deserialize(deserializer)? {
            Wire::Text(text) => text.into_bytes(),
            Wire::Raw(raw) => raw,
        }))
    }
}

impl Bytes {
    /// Bytes as the type of the operating system's functions.
    pub fn os(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }
    /// Bytes as a path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(self.os())
    }
    /// Text for people; bytes that are not UTF-8 are replaced.
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl From<&std::path::Path> for Bytes {
    fn from(path: &std::path::Path) -> Self {
        Bytes(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<&std::ffi::OsStr> for Bytes {
    fn from(text: &std::ffi::OsStr) -> Self {
        Bytes(text.as_bytes().to_vec())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Bytes(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_of_them_is_the_same_bytes() {
        let raw = b"/caf\xc3\xa9\xff".as_slice();
        let bytes = Bytes::from(raw);
        assert_eq!(bytes.0, raw);
        assert_eq!(bytes.os().as_bytes(), raw);
        assert_eq!(Bytes::from(bytes.os().as_os_str()), bytes);
        assert_eq!(Bytes::from(bytes.path().as_path()), bytes);
        assert_eq!(bytes.lossy(), "/caf\u{e9}\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let json = serde_json::to_string(&Bytes(bytes.clone())).expect("json");
            let back: Bytes = serde_json::from_str(&json).expect("back");
            prop_assert_eq!(back.0, bytes);
        }
    }
}
