//! Bodies of requests.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};

use super::SubresourceError;
use crate::go_duration;

/// The only allowed value of `dryRun`.
const ALL: &str = "All";

/// `start`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct StartOptions {
    /// Whether the guest starts paused, until it is resumed.
    pub paused: Option<bool>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `stop`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct StopOptions {
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
    /// The node that the instance was to leave; empty: any node.
    pub evacuation_node_name: Option<String>,
    /// `["All"]`: nothing is written.
    pub dry_run: Option<Vec<String>>,
}

/// `pause`, `unpause`, and other commands to a guest.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct CommandOptions {
    /// `["All"]`: nothing is done.
    pub dry_run: Option<Vec<String>>,
}

/// `freeze`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Freeze {
    /// Time until the file systems are thawed automatically, as a Go duration; `0s`: never.
    pub unfreeze_timeout: Option<String>,
}

impl Freeze {
    /// Returns the seconds until the thaw, rounded up; `None`: never.
    ///
    /// # Errors
    /// 500 with KubeVirt's message if there is no timeout, and 400 if the timeout is not a duration.
    pub fn thaw_after(&self) -> Result<Option<NonZeroU32>, SubresourceError> {
        let Some(text) = &self.unfreeze_timeout else {
            return Err(SubresourceError::internal(
                "Unfreeze timeout in freeze request is not set",
            ));
        };
        // Go reads zero without a unit too.
        let duration = go_duration::parse(text).or_else(|| (text == "0").then_some(Duration::ZERO));
        let seconds = duration.and_then(|duration| {
            let more = u64::from(duration.subsec_nanos() > 0);
            u32::try_from(duration.as_secs().checked_add(more)?).ok()
        });
        seconds.map(NonZeroU32::new).ok_or_else(|| {
            SubresourceError::bad_request(format!(
                "unfreezeTimeout: {text:?} is not a duration such as 5m0s; 0s means never"
            ))
        })
    }
}

/// Parses a body as JSON or YAML, regardless of its Content-Type; an empty body has no options.
///
/// # Errors
/// 400 with KubeVirt's message, if the body is neither, or does not match the type.
pub fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, SubresourceError> {
    let failed = |error: String| {
        // Parsers add the position on further lines, which are omitted.
        let error = error.lines().next().unwrap_or_default().to_owned();
        SubresourceError::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
    };
    let text = std::str::from_utf8(body).map_err(|error| failed(error.to_string()))?;
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    let options: Option<T> = serde_saphyr::from_str(text).map_err(|error| failed(error.to_string()))?;
    Ok(options.unwrap_or_default())
}

/// Returns whether nothing is to be written.
///
/// # Errors
/// 400 if there is another value than `All`.
pub fn is_dry_run(dry_run: Option<&[String]>) -> Result<bool, SubresourceError> {
    let values = dry_run.unwrap_or_default();
    match values.iter().find(|value| *value != ALL) {
        Some(value) => Err(SubresourceError::bad_request(format!(
            "dryRun: {value:?} is not allowed; allowed: {ALL:?}"
        ))),
        None => Ok(!values.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn timeout_of_a_freeze_is_a_go_duration() {
        for (timeout, expected) in [
            (Some("5m0s"), Ok(Some(300))),
            (Some("1h2m3s"), Ok(Some(3723))),
            (Some("1.5s"), Ok(Some(2))),
            (Some("300ms"), Ok(Some(1))),
            (Some("0s"), Ok(None)),
            (Some("0"), Ok(None)),
            (Some("-5m"), Err(400)),
            (Some("5"), Err(400)),
            (Some("soon"), Err(400)),
            (Some(""), Err(400)),
            (Some("9999999h"), Err(400)),
            (None, Err(500)),
        ] {
            let options = Freeze {
                unfreeze_timeout: timeout.map(str::to_owned),
            };
            let result = options.thaw_after();
            let result = result
                .map(|after| after.map(NonZeroU32::get))
                .map_err(|failure| failure.code);
            assert_eq!(result, expected, "{timeout:?}");
        }
    }

    /// Pieces of bodies in JSON and YAML.
    fn body() -> impl Strategy<Value = Vec<u8>> {
        let pieces = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"",
            "'",
            "- ",
            "\n",
            "  ",
            "&a ",
            "*a",
            "!!binary ",
            "|",
            "dryRun",
            "All",
            "paused",
            "gracePeriod",
            "true",
            "-1",
            "1e999",
            "null",
            "~",
            "addedNodeSelector",
            "<<",
            "\u{0}",
            "\u{feff}",
            "x",
        ];
        let text = prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..24)
            .prop_map(|parts| parts.concat().into_bytes());
        prop_oneof![4 => text, 1 => prop::collection::vec(any::<u8>(), 0..40)]
    }

    proptest! {
        #[test]
        fn any_body_has_options_or_is_refused_with_400(body in body()) {
            let codes = [
                read::<StartOptions>(&body).err(),
                read::<StopOptions>(&body).err(),
                read::<Restart>(&body).err(),
                read::<Migrate>(&body).err(),
                read::<CancelEvacuation>(&body).err(),
                read::<Freeze>(&body).err(),
            ];
            for failure in codes.into_iter().flatten() {
                prop_assert_eq!(failure.code, 400);
                // virtctl reads 1,024 bytes of a refusal.
                prop_assert!(failure.to_status().to_string().len() <= 1024, "{}", failure.message);
            }
        }
    }

    #[test]
    fn body_that_expands_without_end_is_refused() {
        let mut body = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let before = level - 1;
            let list = vec![format!("*a{before}"); 9].join(", ");
            body += &format!("a{level}: &a{level} [{list}]\n");
        }
        assert_eq!(read::<StartOptions>(body.as_bytes()).unwrap_err().code, 400);
        let deep = "[".repeat(100_000);
        assert_eq!(read::<StartOptions>(deep.as_bytes()).unwrap_err().code, 400);
    }
}
