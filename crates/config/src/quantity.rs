//! A resource quantity that remembers how it was written, so that `/configz` shows what the file says.

use std::fmt;
use std::str::FromStr;

use mainstay_types::{Quantity as Amount, QuantityError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A checked quantity of the configuration with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantity {
    text: String,
    amount: Amount,
}

impl Quantity {
    /// How much it is.
    pub fn amount(&self) -> Amount {
        self.amount
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self { text: "0".to_owned(), amount: Amount::ZERO }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Ok(Self { text: text.to_owned(), amount: Amount::parse(text)? })
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
