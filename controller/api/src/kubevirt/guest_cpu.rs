//! The CPU that a guest has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A guest's CPU in full.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestCpu {
    /// The named model that it is based on.
    pub model: String,
    /// Vendor that the guest sees, if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Features that it has beyond the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<String>,
    /// Features of the model that it lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<String>,
    /// Bits of a physical address, where they follow the host's. A node with fewer cannot take the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_address_bits: Option<u32>,
}
