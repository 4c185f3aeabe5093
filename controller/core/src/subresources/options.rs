//! What requests may contain.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};

use super::Failure;

/// The one value of `dryRun`.
const ALL: &str = "All";

/// `start`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Start {
    /// The guest stands still until somebody resumes it.
    pub paused: Option<bool>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `stop`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Stop {
    /// Seconds that the guest has to shut down.
    pub grace_period: Option<i64>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `restart`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Restart {
    /// 0: the guest has no time to shut down.
    pub grace_period_seconds: Option<i64>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `migrate`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Migrate {
    /// Labels that the target node must have.
    pub added_node_selector: Option<BTreeMap<String, String>>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `evacuate/cancel`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct CancelEvacuation {
    /// The node that the instance was to leave; empty: whichever it is.
    pub evacuation_node_name: Option<String>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `pause`, `unpause`, and other commands to a guest.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Command {
    /// `["All"]`: nothing is done.
    pub dry_run: Option<Vec<String>>,
}

/// Reads a body, which is JSON or YAML, whatever its Content-Type; an empty one has no options.
///
/// # Errors
/// 400 in KubeVirt's words, if it is neither or does not fit.
pub fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Failure> {
    let failed = |error: String| {
        // Parsers show where in several lines.
        let error = error.lines().next().unwrap_or_default().to_owned();
        Failure::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
    };
    let text = std::str::from_utf8(body).map_err(|error| failed(error.to_string()))?;
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    let options: Option<T> = serde_saphyr::from_str(text).map_err(|error| failed(error.to_string()))?;
    Ok(options.unwrap_or_default())
}

/// Whether nothing is to be written.
///
/// # Errors
/// 400 if there is another value than `All`.
pub fn is_dry_run(dry_run: Option<&[String]>) -> Result<bool, Failure> {
    let values = dry_run.unwrap_or_default();
    match values.iter().find(|value| *value != ALL) {
        Some(value) => Err(Failure::bad_request(format!(
            "dryRun: {value:?} is not allowed; allowed: {ALL:?}"
        ))),
        None => Ok(!values.is_empty()),
    }
}
