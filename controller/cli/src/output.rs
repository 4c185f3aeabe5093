//! Prints results as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

/// Version of the JSON output.
const API_VERSION: &str = "cli.drydock.dev/v1";

/// Prints a result as a JSON object with a kind, on one line.
///
/// # Errors
/// If the object cannot be written.
pub(crate) fn document(out: &mut dyn Write, kind: &str, result: &impl Serialize) -> io::Result<()> {
    let mut document = json!({"apiVersion": API_VERSION, "kind": kind});
    if let (Some(all), Ok(Value::Object(fields))) = (document.as_object_mut(), serde_json::to_value(result)) {
        all.extend(fields);
    }
    writeln!(out, "{document}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_is_an_object_of_a_kind() {
        let mut out = Vec::new();
        document(&mut out, "Thing", &json!({"a": 1})).unwrap();
        let printed: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            printed,
            json!({"apiVersion": "cli.drydock.dev/v1", "kind": "Thing", "a": 1})
        );
    }
}
