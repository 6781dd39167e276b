//! Settings from several sources: options override the environment, which overrides a file, which
//! overrides defaults. An error is a sentence that names the source and the key.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;

use crate::model::{OnCap, Stuck};
use crate::schema::name::{Name, Namespace, Node};
use crate::toml::Written;

/// Value that is one text.
pub trait Value: Sized {
    /// Expected form of the value: messages print it after "expected".
    const WANTED: &'static str = "a string";

    /// Reads the value.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    fn read(text: &str) -> Result<Self, String>;
}

/// Value of a key.
pub trait Setting: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    fn of(written: Written) -> Result<Self, String>;
}

impl<T: Value> Setting for T {
    fn of(written: Written) -> Result<Self, String> {
        T::read(&written.text(T::WANTED)?)
    }
}

impl<T: Value> Setting for Vec<T> {
    fn of(written: Written) -> Result<Self, String> {
        read_all(written.list("a list of strings")?)
    }
}

/// Reads several values.
///
/// # Errors
/// A sentence that says what is wrong with the first invalid one.
pub fn read_all<T: Value>(texts: Vec<String>) -> Result<Vec<T>, String> {
    texts.iter().map(|text| T::read(text)).collect()
}

impl Value for String {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("it is empty".to_owned()),
            text => Ok(text.to_owned()),
        }
    }
}

impl Value for bool {
    const WANTED: &'static str = "true or false";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("'{text}' is not one of true, false")),
        }
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(PathBuf::from(text));
        }
        Err(format!("'{text}' is not an absolute path"))
    }
}

/// Implements [`Value`](crate::settings::Value) for types with the reader `$read`:
/// [`parsed`](crate::settings::parsed) or [`choice`](crate::settings::choice).
#[macro_export]
macro_rules! values {
    ($read:ident: $($name:ty)*) => {$(
        impl $crate::settings::Value for $name {
            fn read(text: &str) -> Result<Self, String> {
                $read(text)
            }
        }
    )*};
}

values! { parsed: Name Namespace Node }
values! { choice: OnCap Stuck }

/// Parses a value.
///
/// # Errors
/// The message of the type's parse error.
pub fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse::<T>().map_err(|e| e.to_string())
}

/// Reads one of the words of an option.
///
/// # Errors
/// The text is not one of these words.
pub fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let known: Vec<_> = T::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value)
            .map(|value| value.get_name().to_owned())
            .collect();
        format!("'{text}' is not one of {}", known.join(", "))
    })
}

/// Program and its arguments.
#[derive(Debug, Default)]
pub struct Words(pub Vec<String>);

impl Setting for Words {
    fn of(written: Written) -> Result<Self, String> {
        let words = written.list("a list of strings such as [\"puppet\", \"agent\"]")?;
        if words.is_empty() {
            return Err("it is empty; name a program, or remove the key".to_owned());
        }
        Ok(Words(words))
    }
}

/// Path from an option.
///
/// # Errors
/// The path is not absolute.
pub fn option(name: &str, given: &Option<PathBuf>) -> Result<Option<PathBuf>, String> {
    let path = given.as_ref().map(|path| Written::Variable(path.into()));
    let path = path.map(Setting::of).transpose();
    path.map_err(|e| format!("the option {name}: {e}"))
}

/// Value of a variable in an environment; `None` if it is not set or empty.
pub fn variable<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    let found = environment.iter().find(|(known, _)| known == name);
    let value = found.map(|(_, value)| value.as_os_str());
    value.filter(|value| !value.is_empty())
}

/// Defines one source of settings, in which every key is optional, from a table: key and type, the
/// environment variable, and the default if it is constant.
#[macro_export]
macro_rules! layer {
    ($($key:ident: $type:ty $(, $variable:literal)? $(=> $default:expr)?;)*) => {
        #[derive(Default)]
        struct Layer {
            $($key: Option<$type>,)*
        }

        impl Layer {
            const KEYS: &[&str] = &[$(stringify!($key)),*];
            const VARIABLES: &[(&str, &str)] = &[$($((stringify!($key), $variable),)?)*];

            fn put(&mut self, key: &str, written: $crate::toml::Written) -> Result<(), String> {
                match key {
                    $(stringify!($key) => self.$key = Some($crate::settings::Setting::of(written)?),)*
                    _ => return Err("it is not known".to_owned()),
                }
                Ok(())
            }

            /// Settings from the environment.
            fn of_environment(
                environment: &[(std::ffi::OsString, std::ffi::OsString)],
            ) -> Result<Self, String> {
                let mut layer = Layer::default();
                for (key, name) in Self::VARIABLES {
                    if let Some(value) = $crate::settings::variable(environment, name) {
                        let put = layer.put(key, $crate::toml::Written::Variable(value.to_owned()));
                        put.map_err(|e| format!("the environment variable {name}: {e}"))?;
                    }
                }
                Ok(layer)
            }

            /// Settings from a file with this text; an error names the line and the key.
            fn of_file(text: &str) -> Result<Self, String> {
                let mut layer = Layer::default();
                $crate::toml::read(text, Self::KEYS, &mut |key, written| layer.put(key, written))?;
                Ok(layer)
            }

            /// These settings; keys that are not set get their value from `below`.
            fn or(self, below: Self) -> Self {
                Layer { $($key: self.$key.or(below.$key),)* }
            }

            $($(fn $key(&mut self) -> $type { self.$key.take().unwrap_or_else(|| $default) })?)*
        }
    };
}
