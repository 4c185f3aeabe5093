//! Volumes, which back the guest's disks.

use drydock_api::kubevirt::volumes::{CloudInitNoCloud, ContainerDisk, SysprepVolume, Volume};

use super::{
    iso_label,
    name_rules::{self, DNS_LABEL, is_dns_label},
    pod_facts,
};
use crate::{
    admission::{At, RefusalList},
    quantity,
};

/// The minimum size of a disk: one sector.
const SECTOR: u64 = 512;
/// The largest qcow2 image: 2 PiB with clusters of 64 KiB, because QEMU limits the L1 table to 32 MiB.
const LARGEST: u64 = 2 << 50;
/// Maximum length of user data and network data, in bytes: KubeVirt's limit for a manifest. For base64 the decoded
/// length counts.
const CLOUD_INIT: usize = 2048;

const SOURCES: &str = "one of containerDisk, cloudInitNoCloud, cloudInitConfigDrive, persistentVolumeClaim, dataVolume, emptyDisk, \
     configMap, secret, sysprep, serviceAccount and downwardAPI";

pub(super) fn check(volumes: &[Volume], at: &At, refusals: &mut RefusalList) {
    let at = at.field("volumes");
    for (index, volume) in volumes.iter().enumerate() {
        let at_volume = at.index(index);
        if !is_dns_label(&volume.name) {
            refusals.not_allowed(&at_volume.field("name"), &volume.name, DNS_LABEL);
        }
        if let Some(first) = volumes[..index].iter().position(|other| other.name == volume.name) {
            refusals.duplicate(&at_volume.field("name"), &volume.name, &at.index(first));
        }
        source(volume, &at_volume, refusals);
        if volume.service_account.is_some()
            && let Some(first) = volumes[..index]
                .iter()
                .position(|other| other.service_account.is_some())
        {
            // A pod has one service account.
            refusals.conflict(
                &at_volume.field("serviceAccount"),
                at.index(first).field("serviceAccount"),
            );
        }
        if let Some((field, claim)) = claim(volume) {
            let first = volumes[..index]
                .iter()
                .position(|other| self::claim(other).is_some_and(|(_, other)| other == claim));
            if let Some(first) = first {
                refusals.duplicate(&at_volume.field(field), claim, &at.index(first));
            }
        }
        let first = volumes[..index]
            .iter()
            .enumerate()
            .find_map(|(index, other)| Some((index, cloud_init_field(other)?)));
        if let (Some(field), Some((first, other))) = (cloud_init_field(volume), first) {
            refusals.conflict(&at_volume.field(field), at.index(first).field(other));
        }
    }
}

/// Returns the field of a volume's data for cloud-init, which reads one source only.
fn cloud_init_field(volume: &Volume) -> Option<&'static str> {
    let no_cloud = volume.cloud_init_no_cloud.as_ref().map(|_| "cloudInitNoCloud");
    let config_drive = volume.cloud_init_config_drive.as_ref().map(|_| "cloudInitConfigDrive");
    no_cloud.or(config_drive)
}

/// Returns the name of the claim that backs a volume, and the field that names it.
fn claim(volume: &Volume) -> Option<(&'static str, &str)> {
    let claim = volume.persistent_volume_claim.as_ref();
    let data = volume.data_volume.as_ref();
    claim
        .map(|claim| ("persistentVolumeClaim", claim.claim_name.as_str()))
        .or_else(|| data.map(|data| ("dataVolume", data.name.as_str())))
}

fn source(volume: &Volume, at: &At, refusals: &mut RefusalList) {
    let sources = [
        ("containerDisk", volume.container_disk.is_some()),
        ("cloudInitNoCloud", volume.cloud_init_no_cloud.is_some()),
        ("cloudInitConfigDrive", volume.cloud_init_config_drive.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("dataVolume", volume.data_volume.is_some()),
        ("emptyDisk", volume.empty_disk.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("sysprep", volume.sysprep.is_some()),
        ("serviceAccount", volume.service_account.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
    ];
    let set: Vec<&str> = sources
        .into_iter()
        .filter_map(|(name, set)| set.then_some(name))
        .collect();
    match set[..] {
        // An unsupported source has already been refused by name.
        [] if refusals.has_refused_within(at) => {}
        [] => refusals.required(at, SOURCES),
        [_] => {}
        [first, ref others @ ..] => {
            for other in others {
                refusals.conflict(&at.field(other), at.field(first));
            }
        }
    }
    if let Some(disk) = &volume.container_disk {
        container_disk(disk, &at.field("containerDisk"), refusals);
    }
    for (field, data) in [
        ("cloudInitNoCloud", &volume.cloud_init_no_cloud),
        ("cloudInitConfigDrive", &volume.cloud_init_config_drive),
    ] {
        if let Some(data) = data {
            cloud_init(data, &at.field(field), refusals);
        }
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let at = at.field("persistentVolumeClaim").field("claimName");
        name_rules::reference(&claim.claim_name, &at, refusals);
    }
    if let Some(data) = &volume.data_volume {
        name_rules::reference(&data.name, &at.field("dataVolume").field("name"), refusals);
    }
    if let Some(map) = &volume.config_map {
        let at = at.field("configMap");
        name_rules::reference(&map.name, &at.field("name"), refusals);
        iso_label::check(map.volume_label.as_deref(), &at, refusals);
    }
    if let Some(secret) = &volume.secret {
        let at = at.field("secret");
        name_rules::reference(&secret.secret_name, &at.field("secretName"), refusals);
        iso_label::check(secret.volume_label.as_deref(), &at, refusals);
    }
    if let Some(sysprep) = &volume.sysprep {
        self::sysprep(sysprep, &at.field("sysprep"), refusals);
    }
    if let Some(account) = &volume.service_account {
        let at = at.field("serviceAccount").field("serviceAccountName");
        name_rules::reference(&account.service_account_name, &at, refusals);
    }
    if let Some(facts) = &volume.downward_api {
        pod_facts::check(facts, &at.field("downwardAPI"), refusals);
    }
    if let Some(disk) = &volume.empty_disk
        && quantity::bytes(&disk.capacity.0).is_none_or(|bytes| !(SECTOR..=LARGEST).contains(&bytes))
    {
        let at = at.field("emptyDisk").field("capacity");
        refusals.not_allowed(&at, &disk.capacity, "an amount of bytes such as 1Gi, from 512 to 2Pi");
    }
}

fn sysprep(volume: &SysprepVolume, at: &At, refusals: &mut RefusalList) {
    match (&volume.config_map, &volume.secret) {
        (None, None) => refusals.required(at, "one of configMap and secret"),
        (Some(map), None) => name_rules::reference(&map.name, &at.field("configMap").field("name"), refusals),
        (None, Some(secret)) => name_rules::reference(&secret.name, &at.field("secret").field("name"), refusals),
        (Some(_), Some(_)) => refusals.conflict(&at.field("secret"), at.field("configMap")),
    }
}

fn container_disk(disk: &ContainerDisk, at: &At, refusals: &mut RefusalList) {
    if disk.image.is_empty() || disk.image.contains(|c: char| c.is_whitespace() || c.is_control()) {
        refusals.not_allowed(
            &at.field("image"),
            &disk.image,
            "the name of an image such as registry.example/disks/fedora:42",
        );
    }
    if let Some(path) = &disk.path
        && !is_absolute_without_dots(path)
    {
        let allowed = "an absolute path of a file in the image, without `.` and `..`";
        refusals.not_allowed(&at.field("path"), path, allowed);
    }
    if let Some(secret) = &disk.image_pull_secret {
        name_rules::reference(secret, &at.field("imagePullSecret"), refusals);
    }
}

fn is_absolute_without_dots(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        !rest.chars().any(char::is_control) && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
    })
}

fn cloud_init(data: &CloudInitNoCloud, at: &At, refusals: &mut RefusalList) {
    let user = [
        ("userData", data.user_data.is_some()),
        ("userDataBase64", data.user_data_base64.is_some()),
        ("secretRef", data.secret_ref.is_some()),
    ];
    let network = [
        ("networkData", data.network_data.is_some()),
        ("networkDataBase64", data.network_data_base64.is_some()),
        ("networkDataSecretRef", data.network_data_secret_ref.is_some()),
    ];
    for sources in [user, network] {
        let mut set = sources.into_iter().filter_map(|(name, set)| set.then_some(name));
        if let Some(first) = set.next() {
            set.for_each(|other| refusals.conflict(&at.field(other), at.field(first)));
        }
    }
    if !user.into_iter().chain(network).any(|(_, set)| set) {
        refusals.required(
            at,
            "at least one of userData, userDataBase64, secretRef, networkData, networkDataBase64 and \
             networkDataSecretRef",
        );
    }
    let plain = [
        ("userData", &data.user_data, "secretRef"),
        ("networkData", &data.network_data, "networkDataSecretRef"),
    ];
    for (name, text, instead) in plain {
        if text.as_ref().is_some_and(|text| text.len() > CLOUD_INIT) {
            let allowed = format_args!("at most {CLOUD_INIT} bytes; a Secret, named by {instead}, can hold more");
            refusals.not_allowed(&at.field(name), text.as_deref().unwrap_or_default(), allowed);
        }
    }
    let encoded = [
        ("userDataBase64", &data.user_data_base64, "secretRef"),
        ("networkDataBase64", &data.network_data_base64, "networkDataSecretRef"),
    ];
    for (name, text, instead) in encoded {
        if let Some(text) = text
            && decoded_length(text).is_none_or(|length| length > CLOUD_INIT)
        {
            let allowed =
                format_args!("base64 of at most {CLOUD_INIT} bytes; a Secret, named by {instead}, can hold more");
            refusals.not_allowed(&at.field(name), text, allowed);
        }
    }
    for (name, secret) in [
        ("secretRef", &data.secret_ref),
        ("networkDataSecretRef", &data.network_data_secret_ref),
    ] {
        if let Some(secret) = secret {
            name_rules::reference(&secret.name, &at.field(name).field("name"), refusals);
        }
    }
}

/// Returns how many bytes the base64 text decodes to; `None` if it is not base64. The text may contain line breaks, as
/// `base64` writes them.
fn decoded_length(text: &str) -> Option<usize> {
    let text: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
    let padding = text.iter().rev().take_while(|b| **b == b'=').count();
    let letters = &text[..text.len() - padding];
    let well_formed = text.len().is_multiple_of(4)
        && padding <= 2
        && letters
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'));
    well_formed.then(|| text.len() / 4 * 3 - padding)
}

#[cfg(test)]
mod tests {
    use super::{decoded_length, is_absolute_without_dots};

    #[test]
    fn base64_is_distinguished_from_other_text() {
        for (text, length) in [
            ("", Some(0)),
            ("QQ==", Some(1)),
            ("QUI=", Some(2)),
            ("QUJD", Some(3)),
            ("QUJD\nQUJD\n", Some(6)),
            ("QUJ", None),
            ("Q===", None),
            ("====", None),
            ("QU=D", None),
            ("#cloud-config", None),
        ] {
            assert_eq!(decoded_length(text), length, "{text}");
        }
    }

    #[test]
    fn paths_stay_in_the_image() {
        for good in ["/disk/fedora.qcow2", "/disk.img", "/a/..b/c"] {
            assert!(is_absolute_without_dots(good), "{good}");
        }
        for bad in [
            "",
            "/",
            "disk.img",
            "/disk/../etc/shadow",
            "/disk/./x",
            "//x",
            "/disk/",
            "/a\nb",
        ] {
            assert!(!is_absolute_without_dots(bad), "{bad}");
        }
    }
}
