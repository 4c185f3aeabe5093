//! Elements that several pages have in common.

use std::fmt::Write as _;

use drydock_view::{nodes::NodeAvailability, text::seconds};
use jiff::Timestamp;
use maud::{Markup, html};

use super::PageContext;
pub(super) use crate::console::url::segment;
use crate::console::{
    page::{BANNERS, CLUSTER, Page, ROOT},
    rights::UserAction,
    view::{ROWS, ViewPath},
};

/// Appends the parts of every page: the cluster, a banner for outdated watches, and the kinds that could not be read.
pub(super) fn frame(page: &mut Page, context: &PageContext<'_>) {
    let cluster = context.cluster;
    page.push(
        CLUSTER,
        "cluster-name",
        html! {
            p #cluster-name title={ (cluster.server) " as " (cluster.user) } {
                strong { (cluster.context) } " " span.quiet { (cluster.server) " as " (cluster.user) }
            }
        },
    );
    if let Some(since) = context.stale_since {
        page.push(
            BANNERS,
            "stale",
            html! {
                p #stale .banner.warning role="alert" {
                    "No updates since " (clock_time(since)) ": the API server cannot be reached. This page shows the "
                    "state at that time, and nothing can be started."
                }
            },
        );
    }
    if !context.snapshot.unread.is_empty() {
        let unread = context.snapshot.unread.iter();
        let unread = unread.map(|unread| format!("{} ({})", unread.resource, unread.why));
        page.push(
            BANNERS,
            "unread",
            html! {
                p #unread .banner {
                    "Not considered, because these objects cannot be read: " (unread.collect::<Vec<_>>().join(", ")) "."
                }
            },
        );
    }
}

/// Returns a time of day. The complete time is machine-readable.
pub(super) fn clock_time(at: Timestamp) -> Markup {
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) { (at.strftime("%H:%M:%S UTC")) } }
}

/// Returns the time that has passed since `at`.
pub(super) fn ago(now: Timestamp, at: Timestamp) -> Markup {
    let passed = u64::try_from(now.duration_since(at).as_secs()).unwrap_or(0);
    let title = at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) title=(title) { (coarse(passed)) } }
}

/// Returns the time until `at`.
pub(super) fn until(now: Timestamp, at: Timestamp) -> Markup {
    let left = u64::try_from(at.duration_since(now).as_secs()).unwrap_or(0);
    let title = at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) title=(title) { "in " (coarse(left)) } }
}

/// Returns a duration that is rounded to ten seconds at first, so that a page does not change too often.
fn coarse(passed: u64) -> String {
    match passed {
        0..=9 => "a few seconds".into(),
        10..=119 => seconds(passed / 10 * 10),
        _ => seconds(passed),
    }
}

/// Returns a state as an icon and a word.
pub(super) fn state(state: NodeAvailability) -> Markup {
    // Paths are drawn in a box of 16 by 16.
    let (class, path) = match state {
        NodeAvailability::Open => ("open", "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z"),
        NodeAvailability::Closed => (
            "closed",
            "M4 7h8v6H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2h-1.6V5a.9.9 0 0 0-1.8 0v2z",
        ),
        NodeAvailability::Emptying => ("emptying", "M2 7h7V4l5 4-5 4V9H2z"),
        NodeAvailability::Blocked => ("blocked", "M8 2l7 12H1zM7.2 6.5v3.6h1.6V6.5zM7.2 11.2v1.5h1.6v-1.5z"),
        NodeAvailability::Empty => ("empty-node", "M6.5 11.7 2.8 8l1.3-1.3 2.4 2.4 5.4-5.4L13.2 5z"),
        NodeAvailability::NotUsable => (
            "unusable",
            "M4.5 3.2 8 6.7l3.5-3.5 1.3 1.3L9.3 8l3.5 3.5-1.3 1.3L8 9.3l-3.5 3.5-1.3-1.3L6.7 8 3.2 4.5z",
        ),
        NodeAvailability::Unknown => (
            "unknown",
            "M7 11h2v2H7zM5 6a3 3 0 1 1 4.2 2.7c-.5.2-.6.5-.6 1.3H7.2c0-1.6.4-2.2 1.3-2.6A1.4 1.4 0 1 0 6.6 6z",
        ),
    };
    html! {
        span class={ "state " (class) } {
            svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" { path fill-rule="evenodd" d=(path) {} }
            " " (state.as_str())
        }
    }
}

/// Returns a bar with segments, each a class and an amount. `label` is the meaning as text.
pub(super) fn bar(segments: &[(&str, u64)], whole: u64, label: &str) -> Markup {
    const WIDTH: u64 = 96;
    let whole = whole.max(1);
    let mut from = 0;
    let mut rectangles = Vec::new();
    for (class, amount) in segments.iter().filter(|(_, amount)| *amount > 0) {
        let start = from * WIDTH / whole;
        from = (from + amount).min(whole);
        rectangles.push((*class, start, (from * WIDTH / whole).max(start + 1) - start));
    }
    html! {
        span.bar {
            svg viewBox={ "0 0 " (WIDTH) " 8" } width=(WIDTH) height="8" aria-hidden="true" {
                rect.track width=(WIDTH) height="8" rx="2" {}
                @for (class, start, width) in rectangles { rect class=(class) x=(start) width=(width) height="8" {} }
            }
            span { (label) }
        }
    }
}

/// Returns the path of a node's page.
pub(super) fn node_path(name: &str) -> String {
    format!("/nodes/{}", segment(name))
}

/// Returns the path of a virtual machine's page.
pub(super) fn machine_path(namespace: &str, name: &str) -> String {
    format!("/virtual-machines/{}/{}", segment(namespace), segment(name))
}

/// Returns an equivalent command that can be copied.
pub(super) fn command(text: &str) -> Markup {
    html! {
        span.command {
            code { (text) }
            button.copy type="button" data-copy=(text) { "Copy" }
        }
    }
}

/// Returns a button that opens a dialog. The button is disabled with the reason if the user lacks the right or the API
/// server cannot be reached.
pub(super) fn opens(label: &str, path: &str, action: UserAction, context: &PageContext<'_>) -> Markup {
    let missing = missing(action, context);
    html! {
        button type="button" data-dialog=(path) disabled[missing.is_some()] title=[missing] { (label) }
        @if let Some(missing) = missing { span.why { (missing) } }
    }
}

/// Returns the identity of an element, composed of the names of an object.
pub(super) fn identity(kind: &str, names: &[&str]) -> String {
    let mut identity = kind.to_owned();
    for name in names {
        // Writing to a string cannot fail.
        let _ = write!(identity, "/{name}");
    }
    identity
}

/// Returns a table. Its rows are parts in the element `body`.
pub(super) fn table(id: &str, what: &str, headings: &[&str], body: &str) -> Markup {
    html! {
        div .scroll id=(id) tabindex="0" role="region" aria-label={ "Table of " (what) } {
            table {
                caption.hidden { (what) }
                thead { tr { @for heading in headings { th scope="col" { (heading) } } } }
                tbody id=(body) {}
            }
        }
    }
}

/// Returns the row that is shown if no row of a table matches the filter.
pub(super) fn no_match(path: &ViewPath, columns: usize, what: &str) -> Markup {
    html! { tr #no-match { td colspan=(columns) { "No " (what) " matches “" (path.filter) "”." } } }
}

/// Appends the heading of a page with a table.
pub(super) fn heading(page: &mut Page, title: &str, summary: &str) {
    page.announce(summary);
    page.push(
        ROOT,
        "summary",
        html! { header #summary { h1 { (title) } p.summary { (summary) } } },
    );
}

/// A form with a button that confirms an action.
pub(super) struct Confirmation<'a> {
    /// Identity of the form.
    pub(super) id: &'a str,
    /// Path that the form is posted to.
    pub(super) path: &'a str,
    /// Names and values of the hidden fields.
    pub(super) hidden: &'a [(&'a str, &'a str)],
    /// Consequences of the action, and other fields of the form.
    pub(super) content: Markup,
    pub(super) action: UserAction,
    /// Whether the action is still possible.
    pub(super) open: bool,
    /// Label of the button.
    pub(super) label: &'a str,
    /// Equivalent command.
    pub(super) command: String,
}

/// Returns the form of a confirmation. If the action is not possible, the button is disabled with the reason.
pub(super) fn form(question: &Confirmation<'_>, context: &PageContext<'_>) -> Markup {
    let missing = missing(question.action, context);
    html! {
        form id=(question.id) data-post=(question.path) {
            @for (name, value) in question.hidden { input type="hidden" name=(name) value=(value); }
            (question.content)
            @if let Some(missing) = missing { p.banner.warning { (missing) } }
            p.error role="alert" hidden {}
            div.buttons {
                button type="button" data-close { "Close" }
                button.primary type="submit" disabled[missing.is_some() || !question.open] { (question.label) }
            }
            (command(&question.command))
        }
    }
}

/// Returns the reason why an action is not possible now.
pub(super) fn missing<'a>(action: UserAction, context: &PageContext<'a>) -> Option<&'a str> {
    match context.stale_since {
        Some(_) => Some("the API server cannot be reached"),
        None => context.rights.missing(action),
    }
}

/// Appends the field that filters rows.
pub(super) fn filter(page: &mut Page, path: &ViewPath, what: &str) {
    page.push(
        ROOT,
        "filter",
        html! {
            form #filter .filter role="search" {
                label for="q" { "Filter " (what) }
                input #q type="search" name="q" value=(path.filter) data-filter autocomplete="off" spellcheck="false";
            }
        },
    );
}

/// Appends the links to the pages of a table with this number of rows.
pub(super) fn pagination(page: &mut Page, path: &ViewPath, base: &str, rows: usize, what: &str) {
    let pages = rows.div_ceil(ROWS);
    let link = |number: usize| format!("{base}?q={}&page={}", segment(&path.filter), number + 1);
    page.push(
        ROOT,
        "pages",
        html! {
            nav #pages aria-label="Pages" {
                @if pages > 1 {
                    @if path.page > 0 { a href=(link(path.page - 1)) rel="prev" { "Previous" } }
                    span { "Page " (path.page + 1) " of " (pages) ", " (rows) " " (what) }
                    @if path.page + 1 < pages { a href=(link(path.page + 1)) rel="next" { "Next" } }
                }
            }
        },
    );
}
