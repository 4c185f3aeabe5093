//! Renders a check report as text.

use std::fmt::Write as _;

use super::{Check, CheckOutcome, CheckReport};
use crate::{
    snapshot::UnreadKind,
    text::{beside, wrapped},
};

/// Column at which the names of checks begin. Findings begin at the same column on the next lines.
const MESSAGE: usize = 13;
/// Number of findings of one check that are printed. On a cluster with hundreds of nodes, one cause can have hundreds
/// of findings. The JSON output has all of them.
const SHOWN: usize = 5;

/// Returns a report as text for a terminal with this width.
pub fn text(report: &CheckReport, width: usize) -> String {
    let mut text = String::new();
    for section in &report.sections {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", section.title);
        for check in &section.checks {
            check_text(&mut text, check, width);
        }
        text.push('\n');
    }
    let count = |outcome| report.outcomes().filter(|other| *other == outcome).count();
    let _ = writeln!(
        text,
        "{} checks: {} ok, {} warning, {} error, {} skipped",
        report.outcomes().count(),
        count(CheckOutcome::Ok),
        count(CheckOutcome::Warning),
        count(CheckOutcome::Error),
        count(CheckOutcome::Skipped)
    );
    if !report.unread.is_empty() {
        let all = format!("could not be read: {}", UnreadKind::list(&report.unread));
        let _ = writeln!(text, "{}", wrapped(&all, width, 0));
    }
    text
}

fn check_text(text: &mut String, check: &Check, width: usize) {
    let label = format!("  {} {}", check.outcome.mark(), check.outcome.as_str());
    beside(text, &label, check.name, MESSAGE, width);
    for finding in check.findings.iter().take(SHOWN) {
        beside(text, "", &finding.message, MESSAGE, width);
        if let Some(remedy) = &finding.remedy {
            remedy.append(text, MESSAGE, width);
        }
    }
    if let Some(more) = check.findings.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        beside(text, "", &format!("and {more} more of this kind"), MESSAGE, width);
    }
}
