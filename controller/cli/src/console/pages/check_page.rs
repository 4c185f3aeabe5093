//! The page with the misconfigurations of the cluster and their remedies. The objects are read once for the page,
//! because they are of a large number of kinds.

use drydock_view::check::{Check, CheckOutcome, CheckReport, Finding, Section};
use maud::{Markup, html};

use super::{
    PageContext,
    parts::{clock_time, command, identity},
};
use crate::console::page::{Page, ROOT};

pub(super) fn page(context: &PageContext<'_>) -> Page {
    let mut page = Page::new("Check");
    match context.report {
        Some(Ok(report)) => {
            let text = numbers(report);
            page.announce(text.clone());
            page.push(ROOT, "summary", summary(report, &text));
            for section in &report.sections {
                page.push(ROOT, id(section), checks(section));
            }
        }
        Some(Err(why)) => page.push(
            ROOT,
            "summary",
            html! { header #summary { h1 { "Check" } p.banner.warning role="alert" { "The checks failed: " (why) } } },
        ),
        None => page.push(
            ROOT,
            "summary",
            html! { header #summary { h1 { "Check" } p { "No checks were run." } } },
        ),
    }
    page
}

/// Returns the number of checks with each outcome.
fn numbers(report: &CheckReport) -> String {
    let count = |outcome| report.outcomes().filter(|other| *other == outcome).count();
    format!(
        "{} ok, {} warnings, {} errors, {} skipped",
        count(CheckOutcome::Ok),
        count(CheckOutcome::Warning),
        count(CheckOutcome::Error),
        count(CheckOutcome::Skipped)
    )
}

fn summary(report: &CheckReport, text: &str) -> Markup {
    html! {
        header #summary {
            h1 { "Check" }
            p.summary { (text) ", at " (clock_time(report.at)) ". " a href="/check" { "Check again" } }
            @if !report.unread.is_empty() {
                p.banner {
                    "Could not be read: "
                    @for (index, unread) in report.unread.iter().enumerate() {
                        @if index > 0 { ", " } (unread.resource) " (" (unread.why) ")"
                    }
                }
            }
        }
    }
}

/// Returns the identity of a section, which must not contain spaces.
fn id(section: &Section) -> String {
    identity("section", &[&section.title.replace(' ', "-")])
}

fn checks(section: &Section) -> Markup {
    html! {
        section.checks id=(id(section)) aria-label=(section.title) {
            h2 { (section.title) }
            ul.conditions { @for check in &section.checks { (line(check)) } }
        }
    }
}

fn line(check: &Check) -> Markup {
    let class = match check.outcome {
        CheckOutcome::Ok => "good",
        CheckOutcome::Skipped => "quiet",
        CheckOutcome::Warning => "attention",
        CheckOutcome::Error => "bad",
    };
    html! {
        li {
            span class={ "outcome " (class) } { (check.outcome.mark()) " " (check.outcome.as_str()) } " " (check.name)
            @for finding in &check.findings { (found(finding)) }
        }
    }
}

fn found(finding: &Finding) -> Markup {
    html! {
        div.finding {
            p { (finding.message) }
            @if let Some(remedy) = &finding.remedy {
                p { "Remedy: " (remedy.text) }
                @if let Some(text) = &remedy.command { (command(text)) }
            }
        }
    }
}
