//! Writes the changes of a typed value into the object that it was read from.
//!
//! Types keep neither unknown fields nor the original notation (`2` or `"2"`). So an object is not replaced by its
//! typed value: only the differences are written into it.

use serde_json::{Map, Value};

/// Writes the differences between `before` and `after` into `raw`. Never removes anything: defaults only add.
pub(super) fn overlay(raw: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            if !raw.is_object() {
                *raw = Value::Object(Map::new());
            }
            let Some(raw) = raw.as_object_mut() else { return };
            for (name, value) in after {
                let was = before.get(name).unwrap_or(&Value::Null);
                if was != value {
                    overlay(raw.entry(name).or_insert(Value::Null), was, value);
                }
            }
        }
        (Value::Null, Value::Object(_)) if raw.is_object() => overlay(raw, &Value::Object(Map::new()), after),
        (Value::Array(before), Value::Array(after)) => {
            let Some(raw) = raw.as_array_mut() else {
                *raw = Value::Array(after.clone());
                return;
            };
            for (index, value) in after.iter().enumerate() {
                match raw.get_mut(index) {
                    Some(raw) => overlay(raw, before.get(index).unwrap_or(&Value::Null), value),
                    None => raw.push(value.clone()),
                }
            }
        }
        _ => *raw = after.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::overlay;

    #[test]
    fn only_differences_are_written_and_unknown_fields_stay() {
        let mut raw = json!({
            "amount": 2,
            "hint": true,
            "disks": [{"name": "a", "io": "native"}],
            "nothing": null,
        });
        let before = json!({"amount": "2", "disks": [{"name": "a"}], "devices": {}});
        let after = json!({
            "amount": "2",
            "disks": [{"name": "a", "disk": {"bus": "virtio"}}, {"name": "b"}],
            "devices": {},
            "nothing": {"set": 1},
            "cpu": {"cores": 1},
        });
        overlay(&mut raw, &before, &after);
        assert_eq!(
            raw,
            json!({
                "amount": 2,
                "hint": true,
                "disks": [{"name": "a", "io": "native", "disk": {"bus": "virtio"}}, {"name": "b"}],
                "nothing": {"set": 1},
                "cpu": {"cores": 1},
            })
        );
    }
}
