//! Parses the legacy ConfigMap `kubevirt-config`.
//!
//! Keys that Drydock does not use are ignored: the ConfigMap belongs to KubeVirt and configures features that Drydock
//! does not have.

use std::collections::{BTreeMap, BTreeSet};

use drydock_api::{
    hyperconverged::LiveMigrationConfig,
    legacy::{KEY_FEATURE_GATES, KEY_MIGRATIONS, KEY_MIN_CPU_MODEL, KEY_OBSOLETE_CPU_MODELS, KEY_USE_EMULATION},
};
use serde_json::{Map, Value};

use super::{Parsed, hyperconverged};
use crate::label_keys;

/// Name of the kind.
pub const KIND: &str = "ConfigMap";

/// Maximum accepted size of one key's value, in bytes.
const LIMIT: usize = 64 * 1024;

/// Parses the ConfigMap's data.
pub fn parse(data: &BTreeMap<String, String>) -> Parsed {
    let mut parsed = Parsed::default();
    let mut get = |key: &str| {
        let text = data.get(key).map(|text| text.trim()).filter(|text| !text.is_empty())?;
        if text.len() <= LIMIT {
            return Some(text);
        }
        parsed.refuse(field(key), text, format!("at most {LIMIT} bytes"));
        None
    };
    let models = get(KEY_OBSOLETE_CPU_MODELS);
    let minimum = get(KEY_MIN_CPU_MODEL);
    let gates = get(KEY_FEATURE_GATES);
    let emulation = get(KEY_USE_EMULATION);
    let migrations = get(KEY_MIGRATIONS);
    if let Some(text) = models {
        parsed.layer.obsolete_cpu_models = model_names(&mut parsed, text);
    }
    if let Some(name) = minimum {
        if is_model_name(name) {
            parsed.layer.min_cpu_model = Some(name.into());
        } else {
            parsed.refuse(field(KEY_MIN_CPU_MODEL), name, "one CPU model, for example Penryn");
        }
    }
    if let Some(text) = gates {
        for gate in text.split(',').map(str::trim).filter(|gate| !gate.is_empty()) {
            parsed.layer.feature_gates.insert(gate.chars().take(63).collect(), true);
        }
    }
    match emulation {
        None => {}
        Some("true") => parsed.layer.use_emulation = Some(true),
        Some("false") => parsed.layer.use_emulation = Some(false),
        Some(other) => parsed.refuse(field(KEY_USE_EMULATION), other, "true or false"),
    }
    if let Some(text) = migrations {
        read_migrations(&mut parsed, text);
    }
    parsed
}

fn field(key: &str) -> String {
    format!("data.{key}")
}

/// Returns whether a CPU model's name is valid as part of a label key.
fn is_model_name(name: &str) -> bool {
    label_keys::is_valid(name) && !name.contains('/')
}

/// Parses names separated by commas or white space. Also accepts lines of the form `name: true` or `- name`, as in
/// KubeVirt's map and in YAML lists.
fn model_names(parsed: &mut Parsed, text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in text.split(['\n', ',']) {
        let entry = entry.trim().trim_start_matches("- ");
        let name = entry
            .split_once(':')
            .map_or(entry, |(name, _)| name)
            .trim()
            .trim_matches(['"', '\'']);
        if name.is_empty() {
            continue;
        }
        if is_model_name(name) {
            names.insert(name.to_owned());
        } else {
            parsed.refuse(
                field(KEY_OBSOLETE_CPU_MODELS),
                name,
                "CPU models separated by commas or line breaks",
            );
        }
    }
    names
}

/// The expected type of a value in the migrations mapping.
enum Expected {
    Integer,
    Boolean,
    Quantity,
    Text,
}

const FIELDS: [(&str, Expected); 11] = [
    ("parallelMigrationsPerCluster", Expected::Integer),
    ("parallelOutboundMigrationsPerNode", Expected::Integer),
    ("parallelInboundMigrationsPerNode", Expected::Integer),
    ("bandwidthPerMigration", Expected::Quantity),
    ("completionTimeoutPerGiB", Expected::Integer),
    ("progressTimeout", Expected::Integer),
    ("maxDowntimeMs", Expected::Integer),
    ("allowAutoConverge", Expected::Boolean),
    ("allowPostCopy", Expected::Boolean),
    ("allowWorkloadDisruption", Expected::Boolean),
    ("nodeDrainTaintKey", Expected::Text),
];

fn read_migrations(parsed: &mut Parsed, text: &str) {
    let path = field(KEY_MIGRATIONS);
    let mapping: Map<String, Value> = match serde_saphyr::from_str(text) {
        Ok(Value::Object(mapping)) => mapping,
        Ok(Value::Null) => return,
        Ok(_) | Err(_) => {
            parsed.refuse(path, text, "a YAML mapping such as `parallelMigrationsPerCluster: 5`");
            return;
        }
    };
    let mut known = Map::new();
    for (name, expected) in &FIELDS {
        let Some(value) = mapping.get(*name).filter(|value| !value.is_null()) else {
            continue;
        };
        // Quoted numbers and booleans count as numbers and booleans, as in KubeVirt.
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let (read, allowed) = match expected {
            Expected::Integer => (
                text.parse::<u32>().ok().map(Value::from),
                "a whole number of at least 0",
            ),
            Expected::Boolean => (text.parse::<bool>().ok().map(Value::from), "true or false"),
            Expected::Quantity => (Some(Value::from(text.clone())), "a quantity"),
            Expected::Text => (value.as_str().map(Value::from), "a string"),
        };
        match read {
            Some(read) => {
                known.insert((*name).into(), read);
            }
            None => parsed.refuse(format!("{path}.{name}"), text, allowed),
        }
    }
    match serde_json::from_value::<LiveMigrationConfig>(Value::Object(known)) {
        Ok(config) => hyperconverged::live_migration(parsed, &config, &path),
        Err(error) => parsed.refuse(path, error.to_string(), "the settings of a live migration"),
    }
}
