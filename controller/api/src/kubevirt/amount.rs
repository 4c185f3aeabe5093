//! Quantities of resources, such as bytes and CPUs.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, de};

/// A quantity as in manifests: `64Mi`, `"2"`, or a plain number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Amount> for Quantity {
    fn from(amount: Amount) -> Self {
        Self(amount.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 64Mi, or a number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.into()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Returns the schema of quantities in Kubernetes' own kinds.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_numbers_are_amounts() {
        for (json, text) in [(r#""64Mi""#, "64Mi"), ("2", "2"), ("-1", "-1"), ("0.5", "0.5")] {
            assert_eq!(serde_json::from_str::<Amount>(json).unwrap().0, text, "{json}");
        }
        assert!(serde_json::from_str::<Amount>("{}").is_err());
        assert!(serde_json::from_str::<Amount>("true").is_err());
    }
}
