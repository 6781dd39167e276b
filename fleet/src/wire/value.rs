//! Values that the backend returns.

/// Value at a key, with the revision of its write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Key of the value.
    pub key: String,
    /// Content of the value.
    pub bytes: Vec<u8>,
    /// Revision of its write.
    pub revision: u64,
    /// Revision of the write that created the key, if the backend reports it; otherwise 0.
    pub first: u64,
    /// Number of writes since then, including that one; 0 if the backend does not report it.
    pub writes: u64,
}

impl Value {
    /// Value from a backend that reports neither `first` nor `writes`.
    pub fn new(key: String, bytes: Vec<u8>, revision: u64) -> Value {
        let (first, writes) = (0, 0);
        Value {
            key,
            bytes,
            revision,
            first,
            writes,
        }
    }

    /// Number of bytes of the key and the content.
    pub fn size(&self) -> usize {
        self.key.len() + self.bytes.len()
    }
}
