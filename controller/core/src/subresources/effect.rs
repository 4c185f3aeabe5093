//! The writes of a request.

use serde_json::{Value, json};

/// The writes of a request: these patches, in this order; may be empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect(pub Vec<JsonPatch>);

/// A JSON patch (RFC 6902) that tests the values on which the decision was based. The API server refuses it if they
/// have changed since.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPatch {
    /// The object or subresource that the patch changes.
    pub written: PatchedPart,
    /// Operations of the patch.
    pub operations: Value,
    /// Operations that undo the patch if a later patch fails.
    pub undo: Option<Value>,
}

/// The object or subresource that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchedPart {
    /// The virtual machine.
    Machine,
    /// The status of the virtual machine.
    MachineStatus,
    /// The instance of the virtual machine.
    Instance,
}

/// Returns the operations that replace `before` (`None`: no value) with `value`, if `before` is still the current
/// value.
pub(super) fn replace(path: &str, before: Option<&Value>, value: &Value) -> Value {
    match before {
        Some(before) => json!([
            {"op": "test", "path": path, "value": before},
            {"op": "replace", "path": path, "value": value},
        ]),
        // A test for null also succeeds if there is no value.
        None => json!([
            {"op": "test", "path": path, "value": null},
            {"op": "add", "path": path, "value": value},
        ]),
    }
}
