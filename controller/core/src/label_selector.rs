//! Label selectors: matching, and serialization for autoscalers.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// An invalid selector, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

/// A valid label selector. Displayed as `app=web,tier in (a,b),!old`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector<'a>(Vec<Requirement<'a>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement<'a> {
    Is(&'a str, &'a str),
    In(&'a str, &'a [String]),
    NotIn(&'a str, &'a [String]),
    Exists(&'a str),
    DoesNotExist(&'a str),
}

impl<'a> Selector<'a> {
    /// Parses a selector.
    ///
    /// # Errors
    /// If an operator is none of Kubernetes' four, or values are missing or too many.
    pub fn new(selector: &'a LabelSelector) -> Result<Self, Invalid> {
        let labels = selector.match_labels.iter().flatten();
        let mut all: Vec<_> = labels.map(|(key, value)| Requirement::Is(key, value)).collect();
        for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
            let values = expression.values.as_deref().unwrap_or_default();
            let wrong = |what: &str| Err(Invalid(format!("spec.selector.matchExpressions[{index}]: {what}")));
            let key = expression.key.as_str();
            all.push(match (expression.operator.as_str(), values.is_empty()) {
                ("In", false) => Requirement::In(key, values),
                ("NotIn", false) => Requirement::NotIn(key, values),
                ("Exists", true) => Requirement::Exists(key),
                ("DoesNotExist", true) => Requirement::DoesNotExist(key),
                ("In" | "NotIn", true) => return wrong("In and NotIn need values"),
                ("Exists" | "DoesNotExist", false) => return wrong("Exists and DoesNotExist take no values"),
                (operator, _) => {
                    return wrong(&format!(
                        "operator {operator:?} is not one of In, NotIn, Exists, DoesNotExist"
                    ));
                }
            });
        }
        Ok(Self(all))
    }

    /// Returns whether these labels match. No labels count as an empty map.
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.matches_values(|key| labels.and_then(|labels| labels.get(key)).map(String::as_str))
    }

    /// Returns whether labels match; `value` returns the value of a label.
    pub fn matches_values<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> bool {
        let is_among = |value: &str, values: &[String]| values.iter().any(|other| other == value);
        self.0.iter().all(|requirement| match requirement {
            Requirement::Is(key, wanted) => value(key) == Some(*wanted),
            Requirement::In(key, wanted) => value(key).is_some_and(|value| is_among(value, wanted)),
            Requirement::NotIn(key, unwanted) => value(key).is_none_or(|value| !is_among(value, unwanted)),
            Requirement::Exists(key) => value(key).is_some(),
            Requirement::DoesNotExist(key) => value(key).is_none(),
        })
    }

    /// Yields the keys of the labels that the selector depends on.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(|requirement| match requirement {
            Requirement::Is(key, _)
            | Requirement::In(key, _)
            | Requirement::NotIn(key, _)
            | Requirement::Exists(key)
            | Requirement::DoesNotExist(key) => *key,
        })
    }
}

impl fmt::Display for Selector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match requirement {
                Requirement::Is(key, value) => write!(f, "{key}={value}"),
                Requirement::In(key, values) => write!(f, "{key} in ({})", values.join(",")),
                Requirement::NotIn(key, values) => write!(f, "{key} notin ({})", values.join(",")),
                Requirement::Exists(key) => f.write_str(key),
                Requirement::DoesNotExist(key) => write!(f, "!{key}"),
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{Invalid, Selector};

    #[test]
    fn each_selector_operator_matches_and_prints_like_kubectl() {
        let selector = serde_json::from_value(json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "zone", "operator": "NotIn", "values": ["x"]},
                {"key": "new", "operator": "Exists"},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }))
        .unwrap();
        let selector = Selector::new(&selector).unwrap();
        assert_eq!(selector.to_string(), "app=web,tier in (a,b),zone notin (x),new,!old");
        let matches = |labels: serde_json::Value| {
            let labels: Option<BTreeMap<_, _>> = serde_json::from_value(labels).unwrap();
            selector.matches(labels.as_ref())
        };
        assert!(matches(json!({"app": "web", "tier": "b", "new": ""})));
        for broken in [
            json!(null),
            json!({"app": "db", "tier": "b", "new": ""}),
            json!({"app": "web", "tier": "c", "new": ""}),
            json!({"app": "web", "tier": "b", "new": "", "zone": "x"}),
            json!({"app": "web", "tier": "b"}),
            json!({"app": "web", "tier": "b", "new": "", "old": ""}),
        ] {
            assert!(!matches(broken.clone()), "{broken}");
        }
    }

    #[test]
    fn invalid_selector_expression_is_named() {
        for (expression, expected) in [
            (
                json!({"key": "a", "operator": "Like", "values": ["b"]}),
                "\"Like\" is not one of",
            ),
            (json!({"key": "a", "operator": "In"}), "need values"),
            (
                json!({"key": "a", "operator": "Exists", "values": ["b"]}),
                "take no values",
            ),
        ] {
            let selector = serde_json::from_value(json!({"matchExpressions": [expression]})).unwrap();
            let Err(Invalid(message)) = Selector::new(&selector) else {
                panic!("{selector:?} should be refused")
            };
            assert!(
                message.contains(expected) && message.contains("matchExpressions[0]"),
                "{message}"
            );
        }
    }
}
