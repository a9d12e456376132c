//! JSON form of values, as protobuf defines it: 64-bit integers as numbers or strings, doubles as numbers or `"NaN"`, `"Infinity"`
//! and `"-Infinity"`, enums by name.

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

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, \"NaN\", \"Infinity\" or \"-Infinity\"")]
enum DoubleOrText {
    Positive(u64),
    Negative(i64),
    Number(f64),
    Text(String),
}

impl DoubleOrText {
    fn value<E: serde::de::Error>(self) -> Result<f64, E> {
        match self {
            Self::Positive(value) => exact(value.into()),
            Self::Negative(value) => exact(value.into()),
            Self::Number(value) => Ok(value),
            Self::Text(text) => match text.as_str() {
                "NaN" => Ok(f64::NAN),
                "Infinity" => Ok(f64::INFINITY),
                "-Infinity" => Ok(f64::NEG_INFINITY),
                _ => Err(E::custom(format!(
                    "expected a number, \"NaN\", \"Infinity\" or \"-Infinity\", found \"{text}\""
                ))),
            },
        }
    }
}

/// Converts an integer to the double that is equal to it.
fn exact<E: serde::de::Error>(value: i128) -> Result<f64, E> {
    let double = value as f64;
    if double as i128 == value {
        return Ok(double);
    }
    Err(E::custom(format!(
        "expected a number that a double represents exactly, found {value}, which would become {double}"
    )))
}

pub(crate) mod double {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::DoubleOrText;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match *value {
            value if value.is_finite() => serializer.serialize_f64(value),
            value if value.is_nan() => serializer.serialize_str("NaN"),
            value if value > 0.0 => serializer.serialize_str("Infinity"),
            _ => serializer.serialize_str("-Infinity"),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        DoubleOrText::deserialize(deserializer)?.value()
    }
}

pub(crate) mod optional_double {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{DoubleOrText, double};

    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => double::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<DoubleOrText>::deserialize(deserializer)?.map(DoubleOrText::value).transpose()
    }
}

/// Value that replaces nulls. Its errors have its name.
pub(crate) mod null_value {
    use serde::{Deserializer, de::Error};

    pub(crate) use super::optional_double::serialize;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        super::optional_double::deserialize(deserializer)
            .map_err(|error| D::Error::custom(format!("null_value: {error}")))
    }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An enum as the names of its values.
macro_rules! names {
    ($module:ident, $type:ident, $expected:literal) => {
        pub(crate) mod $module {
            use crate::v1::$type;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub(crate) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($type::try_from(*value).unwrap_or_default().as_str_name())
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
                let word = String::deserialize(deserializer)?;
                $type::from_str_name(&word).map(i32::from).ok_or_else(|| {
                    D::Error::custom(format!(
                        "{}: expected {}, found \"{word}\"",
                        stringify!($module),
                        $expected
                    ))
                })
            }
        }
    };
}

names!(remainder, Remainder, "SHORT, DROP or PAD");
names!(priority, Priority, "NORMAL or LOW");
