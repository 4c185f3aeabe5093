//! Credentials of accounts in a guest that are stored in the cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Credentials of accounts in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct AccessCredential {
    /// Public SSH keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<SshPublicKey>,
    /// Passwords of users of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_password: Option<UserPassword>,
}

impl AccessCredential {
    /// Returns the name of the Secret with the credentials.
    pub fn secret(&self) -> Option<&str> {
        let keys = self.ssh_public_key.as_ref().map(|keys| &keys.source);
        let source = keys.or(self.user_password.as_ref().map(|passwords| &passwords.source))?;
        Some(source.secret.as_ref()?.secret_name.as_str())
    }

    /// Returns whether the guest agent sets the credentials.
    pub fn is_by_agent(&self) -> bool {
        let keys = self.ssh_public_key.as_ref();
        let passwords = self.user_password.as_ref();
        keys.is_some_and(|keys| keys.propagation_method.qemu_guest_agent.is_some())
            || passwords.is_some_and(|passwords| passwords.propagation_method.qemu_guest_agent.is_some())
    }
}

/// Public SSH keys of accounts in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SshPublicKey {
    /// Source of the keys.
    pub source: CredentialSource,
    /// Method of passing the keys to the guest.
    pub propagation_method: PropagationMethod,
}

/// Source of credentials.
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
    /// Name of the Secret.
    pub secret_name: String,
}

/// Method of passing public keys to the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct PropagationMethod {
    /// Passes the keys in the metadata of the volume cloudInitNoCloud, when the guest starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_cloud: Option<ByMetadata>,
    /// Passes the keys in the metadata of the volume cloudInitConfigDrive, when the guest starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<ByMetadata>,
    /// Passes the keys through the guest agent, while the guest runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<KeysByAgent>,
}

/// The users whose keys the guest agent sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KeysByAgent {
    /// Names of the users.
    #[schemars(length(max = 64))]
    pub users: Vec<String>,
}

/// Passwords of users of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct UserPassword {
    /// Source of the passwords: each key of the Secret is the name of a user, and its value is the password.
    pub source: CredentialSource,
    /// Method of passing the passwords to the guest.
    pub propagation_method: PasswordMethod,
}

/// Method of passing passwords to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct PasswordMethod {
    /// Passes the passwords through the guest agent, while the guest runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<PasswordsByAgent>,
}

/// The guest agent sets the passwords.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct PasswordsByAgent {}

/// The guest reads the keys when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ByMetadata {}
