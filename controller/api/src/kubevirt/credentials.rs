//! Credentials of a guest's accounts that the cluster keeps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Credentials of accounts in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct AccessCredential {
    /// Public keys of SSH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<SshPublicKey>,
}

/// Public keys of SSH.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SshPublicKey {
    /// Where the keys are.
    pub source: CredentialSource,
    /// How the guest gets them.
    pub propagation_method: PropagationMethod,
}

/// Where credentials are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CredentialSource {
    /// A Secret in the same namespace; the value of each key is a credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<CredentialSecret>,
}

/// A Secret with credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CredentialSecret {
    /// Its name.
    pub secret_name: String,
}

/// How the guest gets public keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct PropagationMethod {
    /// By the metadata of the volume cloudInitNoCloud, when the guest starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_cloud: Option<ByMetadata>,
    /// By the metadata of the volume cloudInitConfigDrive, when the guest starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<ByMetadata>,
}

/// The guest reads the keys when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ByMetadata {}
