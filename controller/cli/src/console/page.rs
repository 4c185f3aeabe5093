//! A page as parts, so that a change sends only what has changed.
//!
//! A part is an element of the page with an identity. The browser keeps those whose HTML is the same: focus, selection and
//! open folds stay.

use std::collections::HashMap;

use maud::{Markup, html};
use serde::Serialize;

/// An element of a page. Its HTML has one root, with `id` as its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    /// Its identity on the page.
    pub(super) id: String,
    /// The identity of the element that it is in.
    pub(super) into: &'static str,
    /// Its HTML.
    pub(super) html: String,
}

/// The element of the document that holds a page.
pub(super) const ROOT: &str = "page";
/// That of a dialog.
pub(super) const DIALOG: &str = "dialog";

/// What a view shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) parts: Vec<Part>,
}

impl Page {
    pub(super) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            parts: Vec::new(),
        }
    }

    /// Appends a part to an element of an earlier one, or to the root.
    pub(super) fn push(&mut self, into: &'static str, id: impl Into<String>, html: Markup) {
        self.parts.push(Part {
            id: id.into(),
            into,
            html: html.into_string(),
        });
    }

    /// Returns the page of something that does not exist.
    pub(super) fn missing(what: &str) -> Self {
        let mut page = Self::new("Not found");
        page.push(
            ROOT,
            "missing",
            html! { section #missing .empty { h1 { "Not found" } p { "There is no " (what) "." } } },
        );
        page
    }
}

/// What has changed from one state of a page to the next.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(super) enum Update<'a> {
    /// All parts, in their order.
    Snapshot {
        seq: u64,
        title: &'a str,
        parts: &'a [Part],
    },
    /// Parts that are new or have changed, and the order of the parts where that has changed.
    Patch {
        seq: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
        parts: Vec<&'a Part>,
        gone: Vec<&'a str>,
        #[serde(skip_serializing_if = "HashMap::is_empty")]
        order: HashMap<&'static str, Vec<&'a str>>,
    },
}

/// Returns what has changed; `None` if nothing has.
pub(super) fn difference<'a>(before: &'a Page, after: &'a Page, seq: u64) -> Option<Update<'a>> {
    let old: HashMap<&str, &Part> = before.parts.iter().map(|part| (part.id.as_str(), part)).collect();
    let parts: Vec<&Part> = after
        .parts
        .iter()
        .filter(|part| old.get(part.id.as_str()).is_none_or(|old| old != part))
        .collect();
    let now: HashMap<&str, &Part> = after.parts.iter().map(|part| (part.id.as_str(), part)).collect();
    let gone = before
        .parts
        .iter()
        .map(|part| part.id.as_str())
        .filter(|id| !now.contains_key(id));
    let gone: Vec<&str> = gone.collect();
    let (ordered_before, ordered_after) = (ordered(before), ordered(after));
    let order: HashMap<_, _> = ordered_after
        .into_iter()
        .filter(|(into, ids)| ordered_before.get(into) != Some(ids))
        .collect();
    let title = (before.title != after.title).then_some(after.title.as_str());
    if parts.is_empty() && gone.is_empty() && order.is_empty() && title.is_none() {
        return None;
    }
    Some(Update::Patch {
        seq,
        title,
        parts,
        gone,
        order,
    })
}

/// Returns the identities in each element, in their order.
fn ordered(page: &Page) -> HashMap<&'static str, Vec<&str>> {
    let mut order: HashMap<&'static str, Vec<&str>> = HashMap::new();
    for part in &page.parts {
        order.entry(part.into).or_default().push(&part.id);
    }
    order
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn page(parts: &[(&str, &str)]) -> Page {
        let mut page = Page::new("Nodes");
        for (id, text) in parts {
            page.push("rows", *id, html! { tr id=(id) { td { (text) } } });
        }
        page
    }

    fn patch(before: &Page, after: &Page) -> Value {
        serde_json::to_value(difference(before, after, 2)).unwrap()
    }

    #[test]
    fn only_what_has_changed_is_sent() {
        let before = page(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!(patch(&before, &before), Value::Null);
        assert_eq!(
            patch(&before, &page(&[("a", "1"), ("b", "9"), ("c", "3")])),
            json!({"kind": "patch", "seq": 2, "gone": [],
                "parts": [{"id": "b", "into": "rows", "html": "<tr id=\"b\"><td>9</td></tr>"}]})
        );
        assert_eq!(
            patch(&before, &page(&[("a", "1"), ("c", "3")])),
            json!({"kind": "patch", "seq": 2, "parts": [], "gone": ["b"], "order": {"rows": ["a", "c"]}})
        );
        assert_eq!(
            patch(&before, &page(&[("c", "3"), ("a", "1"), ("b", "2")])),
            json!({"kind": "patch", "seq": 2, "parts": [], "gone": [], "order": {"rows": ["c", "a", "b"]}})
        );
    }

    #[test]
    fn markup_in_a_value_is_text() {
        let page = page(&[("a", "<img src=x onerror=alert(1)>")]);
        assert_eq!(
            page.parts[0].html,
            "<tr id=\"a\"><td>&lt;img src=x onerror=alert(1)&gt;</td></tr>"
        );
    }
}
