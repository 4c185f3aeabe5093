//! Labels of ISO 9660 file systems.

use crate::admission::{At, RefusalList};

/// Checks the label of an ISO 9660 file system.
pub(super) fn check(label: Option<&str>, at: &At, refusals: &mut RefusalList) {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if let Some(label) = label
        && !(label.len() <= 32 && label.chars().all(good))
    {
        let allowed = "up to 32 letters, digits, `_`, `-` and `.`";
        refusals.not_allowed(&at.field("volumeLabel"), label, allowed);
    }
}
