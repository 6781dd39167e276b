//! Enums whose variants are stable words.

/// Defines an enum whose variants are written as words, in JSON and everywhere else.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Word of the variant, which never changes.
            pub const fn kind(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }
        }
    };
}
pub use words;

/// Defines the same enum with [`std::fmt::Display`], for words that people see.
#[macro_export(local_inner_macros)]
macro_rules! shown_words {
    ($(#[$meta:meta])* pub enum $name:ident { $($body:tt)* }) => {
        words! { $(#[$meta])* pub enum $name { $($body)* } }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.kind())
            }
        }
    };
}
pub use shown_words;
