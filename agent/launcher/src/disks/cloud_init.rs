//! Files of a volume for cloud-init, from the manifest and from Secrets.
//!
//! As in KubeVirt, a Secret contains user data under the key `userdata` or `userData`, and network data under the key
//! `networkdata` or `networkData`.

use std::{collections::BTreeMap, fs, io, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use drydock_api::launcher::{CloudInit, CloudInitText, SECRET_KEYS, SECRET_NETWORK, SECRET_USER};

use super::{DiskRefusal, mounted_files};

/// Maximum size of a file in bytes. A Secret contains at most 1 MiB.
const MOST: u64 = 4 * 1024 * 1024;

/// The data source of cloud-init that reads a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// NoCloud.
    NoCloud,
    /// ConfigDrive: OpenStack's config drive.
    ConfigDrive,
}

/// Files of a cloud-init volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataFiles {
    /// Data source that reads the files.
    pub(crate) format: Format,
    /// User data.
    pub(crate) user_data: Vec<u8>,
    /// Meta-data.
    pub(crate) meta_data: Vec<u8>,
    /// Network data. The file is omitted if there is none, because an empty file would mean no network.
    pub(crate) network_config: Option<Vec<u8>>,
}

/// Returns the files for this cloud-init data. `secrets` is the folder in which its Secrets are mounted.
///
/// # Errors
/// If a Secret lacks the data, or if the data is invalid.
pub(crate) fn files(data: &CloudInit, secrets: &Path) -> Result<DataFiles, DiskRefusal> {
    let text = |text: &Option<CloudInitText>, field, folder, keys: [&str; 2]| match text {
        None => Ok(None),
        Some(CloudInitText::Plain(text)) => Ok(Some(text.clone().into_bytes())),
        Some(CloudInitText::Base64(text)) => decode(text, field).map(Some),
        Some(CloudInitText::Secret { name }) => secret(&secrets.join(folder), name.as_deref(), keys).map(Some),
    };
    let user_data = text(&data.user_data, "userDataBase64", SECRET_USER, ["userdata", "userData"])?;
    let network_config = text(
        &data.network_data,
        "networkDataBase64",
        SECRET_NETWORK,
        ["networkdata", "networkData"],
    )?;
    Ok(DataFiles {
        format: match data.config_drive_uuid {
            None => Format::NoCloud,
            Some(_) => Format::ConfigDrive,
        },
        // cloud-init ignores a volume without a file with user data.
        user_data: user_data.unwrap_or_default(),
        meta_data: meta_data(data, &public_keys(data.key_secrets, secrets)?).into_bytes(),
        network_config,
    })
}

/// Formats the metadata as JSON, which is valid YAML and quotes every special character of a name.
fn meta_data(data: &CloudInit, keys: &BTreeMap<String, String>) -> String {
    let mut text = match &data.config_drive_uuid {
        None => serde_json::json!({ "instance-id": data.instance_id, "local-hostname": data.hostname }),
        // cloud-init reads `uuid` and `hostname`. KubeVirt writes the other fields too.
        Some(uuid) => serde_json::json!({
            "uuid": uuid,
            "instance_id": data.instance_id,
            "hostname": data.hostname,
            "local_hostname": data.hostname,
        }),
    };
    if !keys.is_empty() {
        // The names are those that KubeVirt uses, as EC2 and OpenStack did before.
        let name = match data.config_drive_uuid {
            None => "public-keys",
            Some(_) => "public_keys",
        };
        text[name] = serde_json::json!(keys);
    }
    format!("{text}\n")
}

/// Returns the SSH public keys in the mounted Secrets, numbered from 0.
fn public_keys(count: usize, secrets: &Path) -> Result<BTreeMap<String, String>, DiskRefusal> {
    let mut keys = BTreeMap::new();
    for index in 0..count {
        let folder = secrets.join(format!("{SECRET_KEYS}{index}"));
        for path in mounted_files(&folder)? {
            let key = fs::read(&path).map_err(|error| DiskRefusal::unreadable(&path, error))?;
            let key = String::from_utf8_lossy(&key).trim().to_owned();
            if !key.is_empty() {
                keys.insert(keys.len().to_string(), key);
            }
        }
    }
    Ok(keys)
}

fn decode(text: &str, field: &'static str) -> Result<Vec<u8>, DiskRefusal> {
    // The encoder may have wrapped the text.
    let text: String = text.split_ascii_whitespace().collect();
    BASE64_STANDARD.decode(text).map_err(|_| DiskRefusal::Base64(field))
}

fn secret(folder: &Path, name: Option<&str>, keys: [&str; 2]) -> Result<Vec<u8>, DiskRefusal> {
    for key in keys {
        let path = folder.join(key);
        match fs::metadata(&path) {
            Ok(found) if found.len() > MOST => return Err(DiskRefusal::TooMuchData(found.len(), MOST)),
            Ok(_) => return fs::read(&path).map_err(|error| DiskRefusal::unreadable(&path, error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(DiskRefusal::unreadable(&path, error)),
        }
    }
    Err(DiskRefusal::NoSuchKey {
        secret: name.unwrap_or_default().into(),
        keys: keys.join(" or "),
    })
}
