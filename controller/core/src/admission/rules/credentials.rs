//! The guest's access credentials.

use drydock_api::kubevirt::{VirtualMachineInstanceSpec, volumes::Volume};

use super::names;
use crate::admission::{At, Refusals};

/// A way that keys reach the guest: whether the spec has it, its field, whether a volume carries such keys, and its
/// field.
type Method = (bool, &'static str, fn(&Volume) -> bool, &'static str);

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut Refusals) {
    let at_all = at.field("accessCredentials");
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let at_one = at_all.index(index);
        let Some(keys) = &credential.ssh_public_key else {
            // What is not supported has been refused by name.
            if !refusals.has_refused_within(&at_one) {
                refusals.required(&at_one, "sshPublicKey");
            }
            continue;
        };
        let at_keys = at_one.field("sshPublicKey");
        let at_secret = at_keys.field("source").field("secret");
        match &keys.source.secret {
            None => refusals.required(&at_secret, "it says which Secret has the keys"),
            Some(secret) => names::reference(&secret.secret_name, &at_secret.field("secretName"), refusals),
        }
        let by = &keys.propagation_method;
        let at_method = at_keys.field("propagationMethod");
        let methods: [Method; 2] = [
            (
                by.no_cloud.is_some(),
                "noCloud",
                |volume| volume.cloud_init_no_cloud.is_some(),
                "cloudInitNoCloud",
            ),
            (
                by.config_drive.is_some(),
                "configDrive",
                |volume| volume.cloud_init_config_drive.is_some(),
                "cloudInitConfigDrive",
            ),
        ];
        let mut set = methods.iter().filter(|(set, ..)| *set);
        match (set.next(), set.next()) {
            (None, _) if refusals.has_refused_within(&at_method) => {}
            (None, _) => refusals.required(&at_method, "one of noCloud and configDrive"),
            (Some((_, first, ..)), Some((_, other, ..))) => {
                refusals.conflict(&at_method.field(other), at_method.field(first));
            }
            (Some((_, method, carries, volume)), None) => {
                if !spec.volumes.iter().any(carries) {
                    let at = at.field("volumes");
                    let needed = format!("{} needs a volume with {volume}", at_method.field(method));
                    refusals.required(&at, &needed);
                }
            }
        }
    }
}
