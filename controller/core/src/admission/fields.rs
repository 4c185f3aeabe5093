//! Which fields are allowed: each one is implemented, a hint, or refused by name.
//!
//! ```text
//!  field of the object ─▶ in Drydock's definition? ── yes ─▶ implemented
//!                          └ no ─▶ empty, switched off, or an accepted hint? ── yes ─▶ ignored
//!                                   └ no ─▶ a field of KubeVirt's? ── yes ─▶ NotSupported
//!                                            └ no ─▶ UnknownField, with a suggested name
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

use serde_json::Value;

use super::{
    AdmissionRefusal, AdmittedKind, At, RefusalList,
    hints::{self, Accepted},
    nearest::nearest,
    shape::FieldShape,
};

/// The fields of KubeVirt's API, recorded by `hack/record-kubevirt-fields`.
pub(super) const RECORDED: &str = include_str!("../../testdata/kubevirt-v1-fields.txt");

/// Fields that KubeVirt's API has gained since [`RECORDED`] was recorded.
pub(super) const LATER: [(AdmittedKind, &str); 6] = [
    (AdmittedKind::Migration, "spec.priority"),
    (AdmittedKind::Instance, "spec.utilityVolumes[]"),
    (AdmittedKind::Instance, "spec.domain.rebootPolicy"),
    (AdmittedKind::Instance, "spec.domain.launchSecurity.snp"),
    (AdmittedKind::Instance, "spec.domain.launchSecurity.tdx"),
    (AdmittedKind::Instance, "spec.volumes[].containerPath"),
];

/// Fields that only group other fields: each field inside is checked on its own. Any other object has a meaning even
/// if it is empty (`tpm: {}` is a TPM).
pub(super) const CONTAINERS: [&str; 14] = [
    "spec.domain.chassis",
    "spec.domain.cpu.numa",
    "spec.domain.devices.disks[].blockSize",
    "spec.domain.devices.interfaces[].dhcpOptions",
    "spec.domain.features",
    "spec.domain.features.acpi",
    "spec.domain.features.apic",
    "spec.domain.features.hyperv",
    "spec.domain.features.kvm",
    "spec.domain.firmware.acpi",
    "spec.domain.firmware.bootloader",
    "spec.domain.firmware.bootloader.bios",
    "spec.domain.ioThreads",
    "spec.domain.launchSecurity",
];

/// The switch of fields that are on if present, unless their switch is false.
const SWITCH: &str = "enabled";

/// Path at which templates contain the fields of an instance.
const TEMPLATE: &str = "spec.template.spec";

/// Returns a refusal for every field that is neither implemented nor ignored.
pub fn refused_fields(raw: &Value, kind: AdmittedKind) -> Vec<AdmissionRefusal> {
    let mut refusals = RefusalList::default();
    check(raw, kind, &mut refusals);
    refusals.into_vec()
}

/// Refuses every field that is neither implemented nor ignored.
pub(super) fn check(raw: &Value, kind: AdmittedKind, refusals: &mut RefusalList) {
    let Some(spec) = raw.get("spec") else { return };
    let place = FieldPlace {
        at: At::root("spec"),
        kind,
        field: "spec".into(),
    };
    Walk { kind, refusals }.walk(spec, FieldShape::of_spec(kind), &place);
}

/// A path in an object, and the matching path in the list of KubeVirt's fields.
struct FieldPlace {
    at: At,
    kind: AdmittedKind,
    field: String,
}

impl FieldPlace {
    fn field(&self, name: &str) -> Self {
        let at = self.at.field(name);
        let field = format!("{}.{name}", self.field);
        match (self.kind, field.as_str()) {
            (AdmittedKind::Machine | AdmittedKind::ReplicaSet, TEMPLATE) => Self {
                at,
                kind: AdmittedKind::Instance,
                field: "spec".into(),
            },
            _ => Self {
                at,
                kind: self.kind,
                field,
            },
        }
    }

    fn index(&self, index: usize) -> Self {
        Self {
            at: self.at.index(index),
            kind: self.kind,
            field: format!("{}[]", self.field),
        }
    }
}

struct Walk<'a> {
    kind: AdmittedKind,
    refusals: &'a mut RefusalList,
}

impl Walk<'_> {
    fn walk(&mut self, value: &Value, shape: &FieldShape, place: &FieldPlace) {
        match (shape, value) {
            (FieldShape::Fields(fields), Value::Object(object)) => {
                for (name, value) in object {
                    match fields.get(name) {
                        Some(shape) => self.walk(value, shape, &place.field(name)),
                        None => self.not_carried_out(name, value, place, fields),
                    }
                }
            }
            (FieldShape::List(shape), Value::Array(values)) => {
                for (index, value) in values.iter().enumerate() {
                    self.walk(value, shape, &place.index(index));
                }
            }
            // The schema refuses values of other types earlier.
            _ => {}
        }
    }

    fn not_carried_out(
        &mut self,
        name: &str,
        value: &Value,
        parent: &FieldPlace,
        beside: &BTreeMap<String, FieldShape>,
    ) {
        let place = parent.field(name);
        if let Some(hint) = hints::find(place.kind, &place.field).filter(|_| !name.contains('.')) {
            let shown = match value {
                Value::Null => return,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match hint.accepted {
                Accepted::Any => {}
                Accepted::Only(accepted) if shown == accepted => {}
                Accepted::Only(accepted) => self.refusals.value_not_supported(&place.at, &shown, accepted),
            }
            return;
        }
        // A key with a dot is never a known field, whatever path it seems to form.
        let is_known = !name.contains(['.', '[']) && known(place.kind).contains_key(place.field.as_str());
        if !is_known {
            let recorded = known(parent.kind).get(parent.field.as_str());
            let names = recorded.into_iter().flatten().copied();
            let meant = nearest(name, beside.keys().map(String::as_str).chain(names));
            self.refusals.unknown(&place.at, self.kind.as_str(), meant);
        } else if let (true, Value::Object(inner)) = (CONTAINERS.contains(&place.field.as_str()), value) {
            let nothing = BTreeMap::new();
            for (name, value) in inner {
                self.not_carried_out(name, value, &place, &nothing);
            }
        } else if !is_empty(value) && !is_switched_off(value) {
            self.refusals.not_supported(&place.at);
        }
    }
}

/// Returns whether a value requests nothing. `false` is the default of all switches that are not hints.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}

/// Returns whether an object is switched off.
fn is_switched_off(value: &Value) -> bool {
    value.get(SWITCH) == Some(&Value::Bool(false))
}

/// Returns KubeVirt's fields of a kind: for each path, with `[]` for lists, the names of the fields below it.
fn known(kind: AdmittedKind) -> &'static BTreeMap<&'static str, BTreeSet<&'static str>> {
    static KNOWN: OnceLock<BTreeMap<AdmittedKind, BTreeMap<&'static str, BTreeSet<&'static str>>>> = OnceLock::new();
    static NOTHING: BTreeMap<&'static str, BTreeSet<&'static str>> = BTreeMap::new();
    let all = KNOWN.get_or_init(|| {
        let mut all: BTreeMap<AdmittedKind, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        for (kind, path) in recorded() {
            let paths = all.entry(kind).or_default();
            // The path without `[]` finds a list, the path with `[]` finds its items.
            for path in [path, path.trim_end_matches("[]")] {
                paths.entry(path).or_default();
            }
            if let Some((parent, name)) = path.rsplit_once('.') {
                paths.entry(parent).or_default().insert(name.trim_end_matches("[]"));
            }
        }
        all
    });
    all.get(&kind).unwrap_or(&NOTHING)
}

/// Yields the kind and path of each of KubeVirt's fields.
pub(super) fn recorded() -> impl Iterator<Item = (AdmittedKind, &'static str)> {
    let lines = RECORDED.lines().filter_map(|line| {
        let (kind_name, path) = line.split_once(' ')?;
        let kind = AdmittedKind::ALL.into_iter().find(|kind| kind.as_str() == kind_name)?;
        Some((kind, path))
    });
    lines.chain(LATER)
}
