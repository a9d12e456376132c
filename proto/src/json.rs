//! JSON form of values: 64-bit integers as numbers or strings, enums by name.

use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an unsigned 64-bit integer, as a number or a string")]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl NumberOrText {
    fn value<E: serde::de::Error>(self) -> Result<u64, E> {
        match self {
            Self::Number(value) => Ok(value),
            Self::Text(text) => text
                .parse()
                .map_err(|_| E::custom(format!("expected an unsigned 64-bit integer, found \"{text}\""))),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected 64-bit integers, as numbers or strings")]
enum SignedOrText {
    Number(i64),
    Text(String),
}

impl SignedOrText {
    fn value<E: serde::de::Error>(self) -> Result<i64, E> {
        match self {
            Self::Number(value) => Ok(value),
            Self::Text(text) => {
                text.parse().map_err(|_| E::custom(format!("expected a 64-bit integer, found \"{text}\"")))
            }
        }
    }
}

pub(crate) fn u64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    NumberOrText::deserialize(deserializer)?.value()
}

pub(crate) fn i64s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    Vec::<SignedOrText>::deserialize(deserializer)?.into_iter().map(SignedOrText::value).collect()
}

pub(crate) fn optional_u64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Option::<NumberOrText>::deserialize(deserializer)?.map(NumberOrText::value).transpose()
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(crate) mod remainder {
    use crate::v1::Remainder;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Remainder::try_from(*value).unwrap_or_default().as_str_name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let word = String::deserialize(deserializer)?;
        Remainder::from_str_name(&word).map(i32::from).ok_or_else(|| {
            D::Error::custom(format!("remainder: expected SHORT, DROP or PAD, found \"{word}\""))
        })
    }
}
