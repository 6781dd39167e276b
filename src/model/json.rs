//! JSON, read as what it is: a struct from an object alone. Derived readers take lists for structs too; leaving that out is a
//! twentieth of the program.

use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Reads a value.
///
/// # Errors
/// What of the text is no such value, and where.
pub fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(Strict(&mut json))?;
    json.end()?;
    Ok(value)
}

/// Passes everything on, and asks for a map where a struct is wanted.
struct Strict<T>(T);

/// A seed that reads the fields of a variant.
struct Fields<V>(V);

macro_rules! pass_on {
    ($($ask:ident($($argument:ident: $type:ty),*);)*) => {$(
        fn $ask<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$ask($($argument,)* Strict(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Strict(visitor))
    }

    pass_on! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }
}

macro_rules! visit {
    ($($visit:ident($type:ty);)*) => {$(
        fn $visit<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$visit(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_u64(u64);
        visit_f64(f64);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Strict(some))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Strict(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, choice: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Strict(choice))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(value))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(seed)?;
        Ok((value, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Strict(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.newtype_variant_seed(Fields(visitor))
    }
}

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Fields<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        value.deserialize_map(Strict(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone, PartialEq, Deserialize, serde::Serialize)]
    enum Choice {
        Nothing,
        One(u8),
        Two(i32, String),
        Fields { a: bool, b: Option<u64> },
    }

    #[derive(Debug, Clone, PartialEq, Deserialize, serde::Serialize)]
    struct Inner(f64);

    #[derive(Debug, Clone, PartialEq, Deserialize, serde::Serialize)]
    struct Whole {
        choices: Vec<Choice>,
        names: BTreeMap<String, Inner>,
        pair: (u8, String),
        #[serde(default)]
        unit: (),
    }

    fn choice() -> impl Strategy<Value = Choice> {
        prop_oneof![
            Just(Choice::Nothing),
            any::<u8>().prop_map(Choice::One),
            any::<(i32, String)>().prop_map(|(number, text)| Choice::Two(number, text)),
            any::<(bool, Option<u64>)>().prop_map(|(a, b)| Choice::Fields { a, b }),
        ]
    }

    fn whole() -> impl Strategy<Value = Whole> {
        let names = proptest::collection::btree_map(
            any::<String>(),
            any::<i32>().prop_map(|n| Inner(f64::from(n) / 4.0)),
            0..4,
        );
        let choices = proptest::collection::vec(choice(), 0..4);
        (choices, names, any::<(u8, String)>()).prop_map(|(choices, names, pair)| Whole {
            choices,
            names,
            pair,
            unit: (),
        })
    }

    proptest! {
        #[test]
        fn reads_what_was_written(whole in whole()) {
            let text = serde_json::to_vec(&whole).expect("text");
            prop_assert_eq!(read::<Whole>(&text).expect("read"), whole);
        }

        #[test]
        fn total(text in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read::<Whole>(&text);
        }
    }

    #[test]
    fn a_list_is_no_struct_and_nothing_may_follow() {
        #[derive(Debug, Deserialize)]
        struct Pair {
            _a: u8,
        }
        let wrong = |text: &str| read::<Pair>(text.as_bytes()).expect_err(text).to_string();
        assert!(serde_json::from_str::<Pair>("[1]").is_ok());
        assert!(
            wrong("[1]").starts_with("invalid type: sequence, expected struct Pair"),
            "{}",
            wrong("[1]")
        );
        assert!(wrong("{\"_a\":1} 2").starts_with("trailing characters at line 1 column 10"));
        assert!(read::<Choice>(b"{\"Fields\":[true,1]}").is_err());
    }
}
