//! The guest's access credentials.

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    credentials::{CredentialSource, PropagationMethod},
    volumes::Volume,
};

use super::name_rules;
use crate::admission::{At, RefusalList};

/// Longest name of a user in a guest (`useradd(8)` of shadow 4.17 allows 256).
const LONGEST_USER: usize = 256;

/// A method of propagating keys to the guest: whether the spec uses it and the method's field. For a method that uses a
/// volume, also whether a given volume carries the keys, and the volume's field.
type Method = (bool, &'static str, Option<(fn(&Volume) -> bool, &'static str)>);

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let at_all = at.field("accessCredentials");
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let at_one = at_all.index(index);
        match (&credential.ssh_public_key, &credential.user_password) {
            // An unsupported field has already been refused by name.
            (None, None) if refusals.has_refused_within(&at_one) => {}
            (None, None) => refusals.required(&at_one, "one of sshPublicKey and userPassword"),
            (Some(_), Some(_)) => refusals.conflict(&at_one.field("userPassword"), at_one.field("sshPublicKey")),
            (Some(keys), None) => {
                let at_keys = at_one.field("sshPublicKey");
                source(&keys.source, &at_keys, refusals);
                key_method(
                    spec,
                    &keys.propagation_method,
                    at,
                    &at_keys.field("propagationMethod"),
                    refusals,
                );
            }
            (None, Some(passwords)) => {
                let at_passwords = at_one.field("userPassword");
                source(&passwords.source, &at_passwords, refusals);
                let at_method = at_passwords.field("propagationMethod");
                if passwords.propagation_method.qemu_guest_agent.is_none() && !refusals.has_refused_within(&at_method) {
                    refusals.required(
                        &at_method.field("qemuGuestAgent"),
                        "the guest agent is the only way to set passwords in the guest",
                    );
                }
            }
        }
    }
}

fn source(source: &CredentialSource, at: &At, refusals: &mut RefusalList) {
    let at_secret = at.field("source").field("secret");
    match &source.secret {
        None => refusals.required(&at_secret, "the Secret with the credentials"),
        Some(secret) => name_rules::reference(&secret.secret_name, &at_secret.field("secretName"), refusals),
    }
}

fn key_method(
    spec: &VirtualMachineInstanceSpec,
    by: &PropagationMethod,
    at: &At,
    at_method: &At,
    refusals: &mut RefusalList,
) {
    let methods: [Method; 3] = [
        (
            by.no_cloud.is_some(),
            "noCloud",
            Some((|volume| volume.cloud_init_no_cloud.is_some(), "cloudInitNoCloud")),
        ),
        (
            by.config_drive.is_some(),
            "configDrive",
            Some((
                |volume| volume.cloud_init_config_drive.is_some(),
                "cloudInitConfigDrive",
            )),
        ),
        (by.qemu_guest_agent.is_some(), "qemuGuestAgent", None),
    ];
    let mut set = methods.iter().filter(|(set, ..)| *set);
    match (set.next(), set.next()) {
        (None, _) if refusals.has_refused_within(at_method) => {}
        (None, _) => refusals.required(at_method, "one of noCloud, configDrive and qemuGuestAgent"),
        (Some((_, first, _)), Some((_, other, _))) => {
            refusals.conflict(&at_method.field(other), at_method.field(first));
        }
        (Some((_, method, Some((carries, volume)))), None) => {
            if !spec.volumes.iter().any(carries) {
                let at = at.field("volumes");
                let needed = format!("{} needs a volume with {volume}", at_method.field(method));
                refusals.required(&at, &needed);
            }
        }
        (Some((_, _, None)), None) => {}
    }
    if let Some(by) = &by.qemu_guest_agent {
        users(&by.users, &at_method.field("qemuGuestAgent").field("users"), refusals);
    }
}

fn users(users: &[String], at: &At, refusals: &mut RefusalList) {
    if users.is_empty() {
        refusals.required(at, "at least one user of the guest");
    }
    for (index, user) in users.iter().enumerate() {
        if user.is_empty() || user.len() > LONGEST_USER || user.chars().any(|c| c.is_control() || c == '/' || c == ':')
        {
            let allowed = format!("up to {LONGEST_USER} characters, without `/`, `:` and control characters");
            refusals.not_allowed(&at.index(index), user, allowed);
        }
    }
}
