//! Pages consist of parts, so that an update contains only changed parts.
//!
//! A part is an element of the page with an identity. The browser keeps elements whose HTML has not changed, with their
//! focus, selection and open folds.

use std::collections::HashMap;

use maud::{Markup, html};
use serde::Serialize;

/// A part of a page. Its HTML has one root element, with `id` as its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PageElement {
    /// Identity of the element on the page.
    pub(super) id: String,
    /// Identity of the parent element.
    pub(super) into: &'static str,
    /// HTML of the element.
    pub(super) html: String,
}

/// Element of the document that contains a page.
pub(super) const ROOT: &str = "page";
/// Element of the document that contains a dialog.
pub(super) const DIALOG: &str = "dialog";
/// Element of the document with the name of the cluster.
pub(super) const CLUSTER: &str = "cluster";
/// Element of the document with the banners of every page.
pub(super) const BANNERS: &str = "banners";

/// Content of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) parts: Vec<PageElement>,
    /// Text that screen readers announce when it changes; empty if there is none.
    pub(super) announcement: String,
}

impl Page {
    pub(super) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            parts: Vec::new(),
            announcement: String::new(),
        }
    }

    /// Sets the text that screen readers announce when it changes.
    pub(super) fn announce(&mut self, text: impl Into<String>) {
        self.announcement = text.into();
    }

    /// Appends a part to an element of an earlier part, or to an element of the document.
    pub(super) fn push(&mut self, into: &'static str, id: impl Into<String>, html: Markup) {
        self.parts.push(PageElement {
            id: id.into(),
            into,
            html: html.into_string(),
        });
    }

    /// Returns the page for an object that does not exist.
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

/// An update for a browser: a whole page, or the changes since the previous state.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Update<'a> {
    pub(super) seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<&'a str>,
    /// Text that screen readers announce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) announce: Option<&'a str>,
    /// Parts that are new or have changed. Each comes after its parent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<&'a PageElement>,
    /// Identities of the parts in an element, in their order, for each element in which they have changed. The browser
    /// removes all other parts from the element.
    #[serde(skip_serializing_if = "HashMap::is_empty")]
    pub(super) order: HashMap<&'static str, Vec<&'a str>>,
}

/// Returns an update with the whole page. It also removes the content of a previous connection.
pub(super) fn whole(page: &Page, seq: u64) -> Update<'_> {
    let mut order = ordered(page);
    for element in [ROOT, CLUSTER, BANNERS] {
        order.entry(element).or_default();
    }
    // A dialog does not change the page below it.
    if order.contains_key(DIALOG) {
        order.retain(|into, _| !matches!(*into, ROOT | CLUSTER | BANNERS));
    }
    Update {
        seq,
        title: Some(&page.title),
        announce: None,
        parts: page.parts.iter().collect(),
        order,
    }
}

/// Returns the changes between two states of a page, which may be empty.
pub(super) fn difference<'a>(before: &'a Page, after: &'a Page, seq: u64) -> Update<'a> {
    let old: HashMap<&str, &PageElement> = before.parts.iter().map(|part| (part.id.as_str(), part)).collect();
    let parts = after.parts.iter();
    let parts = parts.filter(|part| old.get(part.id.as_str()).is_none_or(|old| old != part));
    let ordered_before = ordered(before);
    let mut order = ordered(after);
    for element in ordered_before.keys() {
        order.entry(element).or_default();
    }
    order.retain(|element, ids| ordered_before.get(element) != Some(ids));
    Update {
        seq,
        title: (before.title != after.title).then_some(after.title.as_str()),
        announce: None,
        parts: parts.collect(),
        order,
    }
}

/// Returns the identities of the parts in each element, in their order.
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
    fn only_changed_page_parts_are_sent() {
        let before = page(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!(patch(&before, &before), json!({"seq": 2}));
        assert_eq!(
            patch(&before, &page(&[("a", "1"), ("b", "9"), ("c", "3")])),
            json!({"seq": 2, "parts": [{"id": "b", "into": "rows", "html": "<tr id=\"b\"><td>9</td></tr>"}]})
        );
        assert_eq!(
            patch(&before, &page(&[("a", "1"), ("c", "3")])),
            json!({"seq": 2, "order": {"rows": ["a", "c"]}})
        );
        assert_eq!(patch(&before, &page(&[])), json!({"seq": 2, "order": {"rows": []}}));
        assert_eq!(
            patch(&before, &page(&[("c", "3"), ("a", "1"), ("b", "2")])),
            json!({"seq": 2, "order": {"rows": ["c", "a", "b"]}})
        );
    }

    #[test]
    fn whole_page_replaces_the_previous_content() {
        let mut page = Page::new("Nodes");
        page.push(ROOT, "head", html! { h1 #head { "Nodes" } });
        let update = serde_json::to_value(whole(&page, 1)).unwrap();
        assert_eq!(update["order"], json!({"page": ["head"], "cluster": [], "banners": []}));
        let mut dialog = Page::new("Start");
        dialog.push(DIALOG, "head", html! { h2 #head { "Start" } });
        let update = serde_json::to_value(whole(&dialog, 1)).unwrap();
        assert_eq!(update["order"], json!({"dialog": ["head"]}));
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
