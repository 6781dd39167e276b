//! What the backend shows at a key.

/// A value, and the write that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Where it stands.
    pub key: String,
    /// What stands there.
    pub bytes: Vec<u8>,
    /// Of its write.
    pub revision: u64,
    /// Of the first write since nothing stood there, where the backend says it.
    pub first: u64,
    /// How many writes there were since then; 0 where the backend does not say it.
    pub writes: u64,
}

impl Value {
    /// One of a backend that says no more of it.
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

    /// Bytes of the key and of what is kept of the value.
    pub fn size(&self) -> usize {
        self.key.len() + self.bytes.len()
    }
}
