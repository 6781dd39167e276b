//! Error that ends with exit status 2.

/// Invalid command line or setting; the text says what is wrong, where, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

#[cfg(test)]
mod tests {
    #[test]
    fn it_says_what_it_was_given() {
        assert_eq!(
            super::Usage("no such key".into()).to_string(),
            "no such key"
        );
    }
}
