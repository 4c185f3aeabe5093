//! The CPU of a guest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The complete CPU of a guest: model and features.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestCpu {
    /// Named CPU model on which the guest's CPU is based.
    pub model: String,
    /// Vendor that the guest sees, if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Features that the guest's CPU has in addition to the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<String>,
    /// Features of the model that the guest's CPU lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<String>,
    /// Number of physical address bits, if the guest has as many as its host. A node with fewer bits cannot take the
    /// guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_address_bits: Option<u32>,
}
