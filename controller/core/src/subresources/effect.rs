//! What a request has written.

use serde_json::{Value, json};

/// What a request has written: these patches one after the other, or nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect(pub Vec<JsonPatch>);

/// A JSON patch (RFC 6902) that tests what it was decided by: where that is something else by now, it is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPatch {
    /// What it changes.
    pub written: Written,
    /// Its operations.
    pub operations: Value,
    /// The operations that take it back, where a patch after it fails.
    pub undo: Option<Value>,
}

/// What a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The virtual machine.
    Machine,
    /// Its status.
    MachineStatus,
    /// Its instance.
    Instance,
}

/// The operations that put `value` where `before` is (`None`: nothing), if that is still so.
pub(super) fn replace(path: &str, before: Option<&Value>, value: &Value) -> Value {
    match before {
        Some(before) => json!([
            {"op": "test", "path": path, "value": before},
            {"op": "replace", "path": path, "value": value},
        ]),
        // A test for null holds where there is nothing.
        None => json!([
            {"op": "test", "path": path, "value": null},
            {"op": "add", "path": path, "value": value},
        ]),
    }
}
