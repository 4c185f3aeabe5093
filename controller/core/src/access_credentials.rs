//! The commands by which a guest's agent sets the access credentials of the manifest: QEMU's guest agent protocol,
//! `qapi-schema.json` of `qga`.
//!
//! ```text
//!  accessCredentials ─┐
//!                     ├─▶ commands() ─▶ libvirt ─▶ guest agent ─▶ authorized_keys, passwords
//!  Secrets' files ────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use drydock_api::kubevirt::VirtualMachineInstanceSpec;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// Command that replaces a user's public keys.
const SET_KEYS: &str = "guest-ssh-add-authorized-keys";
/// Command that sets a user's password.
const SET_PASSWORD: &str = "guest-set-user-password";

/// The files of each Secret, by the Secret's name.
pub type Secrets = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// A command for a guest's agent.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialCommand {
    /// Purpose of the command, without any credential: `setting the password of root`.
    pub purpose: String,
    /// Message to the guest agent in JSON, with the credential.
    pub message: String,
}

/// Returns the names of the Secrets with credentials that the guest's agent sets, each once.
pub fn secrets(spec: &VirtualMachineInstanceSpec) -> Vec<&str> {
    let by_agent = spec.access_credentials.iter().filter(|one| one.is_by_agent());
    let mut names: Vec<&str> = Vec::new();
    for name in by_agent.filter_map(|one| one.secret()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the commands that the guest's agent needs for its credentials.
pub fn required_commands(spec: &VirtualMachineInstanceSpec) -> BTreeSet<&'static str> {
    let by_agent = spec.access_credentials.iter().filter(|one| one.is_by_agent());
    by_agent
        .map(|one| {
            if one.ssh_public_key.is_some() {
                SET_KEYS
            } else {
                SET_PASSWORD
            }
        })
        .collect()
}

/// Returns the commands that set all credentials. A user's keys are those of all Secrets that name the user, as in
/// KubeVirt; a key that was removed from a Secret is removed from the user.
///
/// # Errors
/// A message about a file that is not a valid credential.
pub fn commands(spec: &VirtualMachineInstanceSpec, secrets: &Secrets) -> Result<Vec<CredentialCommand>, String> {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut passwords: BTreeMap<&str, &[u8]> = BTreeMap::new();
    for credential in spec.access_credentials.iter().filter(|one| one.is_by_agent()) {
        let Some((name, files)) = credential.secret().and_then(|name| secrets.get_key_value(name)) else {
            continue;
        };
        if let Some(by) = credential
            .ssh_public_key
            .as_ref()
            .and_then(|keys| keys.propagation_method.qemu_guest_agent.as_ref())
        {
            let lines = lines(name, files)?;
            for user in &by.users {
                keys.entry(user).or_default().extend(&lines);
            }
        } else {
            passwords.extend(
                files
                    .iter()
                    .map(|(user, password)| (user.as_str(), password.as_slice())),
            );
        }
    }
    let keys = keys.into_iter().map(|(user, lines)| {
        let arguments = json!({"username": user, "keys": distinct(lines), "reset": true});
        command(format!("setting the public keys of {user}"), SET_KEYS, &arguments)
    });
    let passwords = passwords.into_iter().map(|(user, password)| {
        let arguments = json!({"username": user, "password": ByteString(password.to_vec()), "crypted": false});
        command(format!("setting the password of {user}"), SET_PASSWORD, &arguments)
    });
    Ok(keys.chain(passwords).collect())
}

fn command(purpose: String, name: &str, arguments: &Value) -> CredentialCommand {
    CredentialCommand {
        purpose,
        message: json!({"execute": name, "arguments": arguments}).to_string(),
    }
}

/// Returns the keys in the files of a Secret: each line that is neither empty nor a comment (`sshd(8)`).
fn lines<'a>(secret: &str, files: &'a BTreeMap<String, Vec<u8>>) -> Result<Vec<&'a str>, String> {
    let mut all = Vec::new();
    for (file, content) in files {
        let text = str::from_utf8(content).map_err(|_| format!("{file} of the Secret {secret} is not UTF-8"))?;
        let lines = text.lines().map(str::trim);
        all.extend(lines.filter(|line| !line.is_empty() && !line.starts_with('#')));
    }
    Ok(all)
}

fn distinct(lines: Vec<&str>) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    lines.into_iter().filter(|line| seen.insert(*line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(credentials: &Value) -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({"domain": {"devices": {}}, "accessCredentials": credentials})).unwrap()
    }

    fn keys(secret: &str, users: &[&str]) -> Value {
        json!({"sshPublicKey": {
            "source": {"secret": {"secretName": secret}},
            "propagationMethod": {"qemuGuestAgent": {"users": users}},
        }})
    }

    fn passwords(secret: &str) -> Value {
        json!({"userPassword": {
            "source": {"secret": {"secretName": secret}},
            "propagationMethod": {"qemuGuestAgent": {}},
        }})
    }

    fn secrets_of(files: &[(&str, &str, &[u8])]) -> Secrets {
        let mut secrets = Secrets::new();
        for (secret, file, content) in files {
            let of = secrets.entry((*secret).to_owned()).or_default();
            of.insert((*file).to_owned(), content.to_vec());
        }
        secrets
    }

    fn messages(commands: &[CredentialCommand]) -> Vec<Value> {
        let parsed = commands
            .iter()
            .map(|command| serde_json::from_str(&command.message).unwrap());
        parsed.collect()
    }

    #[test]
    fn users_get_the_keys_of_all_assigned_secrets() {
        let spec = spec(&json!([keys("a", &["root", "guest"]), keys("b", &["root"])]));
        let secrets = secrets_of(&[
            ("a", "one", b"ssh-ed25519 A\n# comment\n\n  ssh-ed25519 B  \n"),
            ("b", "two", b"ssh-ed25519 B\nssh-ed25519 C"),
        ]);
        let set = |user: &str, keys: &[&str]| {
            json!({"execute": "guest-ssh-add-authorized-keys",
                "arguments": {"username": user, "keys": keys, "reset": true}})
        };
        let commands = commands(&spec, &secrets).unwrap();
        assert_eq!(
            messages(&commands),
            [
                set("guest", &["ssh-ed25519 A", "ssh-ed25519 B"]),
                set("root", &["ssh-ed25519 A", "ssh-ed25519 B", "ssh-ed25519 C"]),
            ]
        );
        assert_eq!(commands[0].purpose, "setting the public keys of guest");
    }

    #[test]
    fn users_lose_the_keys_of_an_empty_secret() {
        let spec = spec(&json!([keys("a", &["root"])]));
        let empty = Secrets::from([("a".to_owned(), BTreeMap::new())]);
        let messages = messages(&commands(&spec, &empty).unwrap());
        assert_eq!(messages[0]["arguments"]["keys"], json!([]));
        // If a Secret could not be read, no key is removed.
        assert!(commands(&spec, &Secrets::new()).unwrap().is_empty());
    }

    #[test]
    fn each_key_of_a_secret_is_a_user_with_a_password() {
        let spec = spec(&json!([passwords("a")]));
        let commands = commands(&spec, &secrets_of(&[("a", "root", b"s\xffcret")])).unwrap();
        assert_eq!(
            messages(&commands),
            [json!({"execute": "guest-set-user-password",
                "arguments": {"username": "root", "password": "c/9jcmV0", "crypted": false}})]
        );
        assert_eq!(commands[0].purpose, "setting the password of root");
    }

    #[test]
    fn key_that_is_no_text_is_refused_by_name() {
        let spec = spec(&json!([keys("a", &["root"])]));
        let error = commands(&spec, &secrets_of(&[("a", "one", b"\xff")])).err();
        assert_eq!(error.as_deref(), Some("one of the Secret a is not UTF-8"));
    }

    #[test]
    fn secrets_and_commands_are_those_of_the_agent_only() {
        let by_metadata = json!({"sshPublicKey": {
            "source": {"secret": {"secretName": "m"}},
            "propagationMethod": {"noCloud": {}},
        }});
        for (credentials, expected, required) in [
            (json!([]), &[][..], &[][..]),
            (json!([by_metadata]), &[], &[]),
            (json!([by_metadata, keys("a", &["x"])]), &["a"], &[SET_KEYS]),
            (
                json!([keys("a", &["x"]), passwords("b"), keys("a", &["y"])]),
                &["a", "b"],
                &[SET_PASSWORD, SET_KEYS],
            ),
        ] {
            let spec = spec(&credentials);
            assert_eq!(secrets(&spec), expected, "{credentials}");
            let needed: Vec<_> = required_commands(&spec).into_iter().collect();
            assert_eq!(needed, required, "{credentials}");
        }
    }
}
