//! Renders the progress of one migration.

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationPhase, MigrationProgress},
};
use drydock_core::{migration::waiting::WAITING, vm_conditions::find};
use jiff::Timestamp;

use super::{
    Canvas, bar,
    flow::{flow, words},
};
use crate::text::bytes;

/// Returns the moved amount and the total amount of a guest's data, in bytes.
fn moved(progress: &MigrationProgress) -> (u64, u64) {
    // The number of bytes sent may exceed the total, because it includes data that the guest has changed since.
    (
        progress.data_total.saturating_sub(progress.data_remaining),
        progress.data_total,
    )
}

/// Returns an amount of a total. The unit is omitted from the first amount if both are the same: `2.1 of 3.4 GiB`.
fn of_whole(part: u64, whole: u64) -> String {
    let (part, whole) = (bytes(part), bytes(whole));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((amount, unit)), Some((_, other))) if unit == other => format!("{amount} of {whole}"),
        _ => format!("{part} of {whole}"),
    }
}

/// Returns a duration in the format of a clock: `0:38`, `1:02:03`.
fn countdown(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Returns percentage, amount and, if it is known, the time left of a migration that has data to move.
pub(crate) fn amounts(progress: &MigrationProgress, now: Timestamp) -> Vec<String> {
    let (part, whole) = moved(progress);
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    let mut pieces = vec![format!("{percent}%"), of_whole(part, whole)];
    if let Some(end) = progress.estimated_end {
        let left = u64::try_from(end.duration_since(now).as_secs()).unwrap_or(0);
        pieces.push(format!("{} left", countdown(left)));
    }
    pieces
}

/// Returns target, percentage, amount and, if it is known, the time left. Returns nothing if the guest is not moving
/// yet.
pub(super) fn pieces(migration: &VirtualMachineInstanceMigration, now: Timestamp) -> Vec<String> {
    let status = migration.status.as_ref();
    let source = status.and_then(|status| status.source.as_ref());
    let progress = source.and_then(|source| source.progress.as_ref());
    let Some(progress) = progress.filter(|progress| progress.data_total > 0) else {
        return Vec::new();
    };
    let target = status.and_then(|status| status.target.as_ref()?.node.as_deref());
    let mut pieces = vec![format!("to {}", target.unwrap_or("another node"))];
    pieces.extend(amounts(progress, now));
    match source.and_then(|source| source.mode) {
        Some(MigrationMode::PostCopy) => pieces.push("already runs on the target".into()),
        Some(MigrationMode::Paused) => pieces.push("paused".into()),
        _ => {}
    }
    pieces
}

/// Returns the state of a migration and a sentence about it, from the conditions and the reports of both sides in its
/// status.
pub fn describe(migration: &VirtualMachineInstanceMigration) -> (&'static str, String) {
    let status = migration.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or(MigrationPhase::Pending);
    let state = status.migration_state.clone().unwrap_or_default();
    let message = match phase {
        MigrationPhase::Succeeded => {
            let took = state
                .start_timestamp
                .zip(state.end_timestamp)
                .map(|(start, end)| end.duration_since(start));
            let took = took.and_then(|took| u64::try_from(took.as_secs()).ok());
            took.map_or_else(
                || "the guest has moved".into(),
                |took| format!("the guest has moved in {}", crate::text::seconds(took)),
            )
        }
        MigrationPhase::Failed => {
            let sides = [
                status.source.as_ref().and_then(|side| side.message.clone()),
                status.target.as_ref().and_then(|side| side.message.clone()),
            ];
            let first = state.failure_reason.or_else(|| sides.into_iter().flatten().next());
            first
                .or(status.reason)
                .unwrap_or_else(|| "no reason was reported".into())
        }
        _ => {
            let waits = find(&status.conditions, WAITING).filter(|condition| condition.status == "True");
            waits.and_then(|waits| waits.message.clone()).unwrap_or_default()
        }
    };
    (phase.as_str(), message)
}

/// Returns one migration as lines that fit the width and the height of the canvas.
pub fn migration(migration: &VirtualMachineInstanceMigration, now: Timestamp, canvas: Canvas) -> Vec<String> {
    let (phase, message) = describe(migration);
    let status = migration.status.as_ref();
    let namespace = migration.metadata.namespace.as_deref().unwrap_or_default();
    let mut head = vec![format!("{namespace}/{}", migration.spec.vmi_name), phase.to_owned()];
    let source = status.and_then(|status| status.source_node.as_deref());
    head.extend(source.map(|source| format!("from {source}")));
    let progress = status.and_then(|status| status.source.as_ref()?.progress.as_ref());
    let is_over = status
        .and_then(|status| status.phase)
        .is_some_and(MigrationPhase::is_final);
    let pieces = pieces(migration, now);
    let target = status.and_then(|status| status.target.as_ref()?.node.as_deref());
    head.extend(
        target
            .filter(|_| is_over || pieces.is_empty())
            .map(|target| format!("to {target}")),
    );
    let mut lines = flow(&head, 2, 0, 2, canvas.width);
    if let Some(progress) = progress.filter(|_| !is_over && !pieces.is_empty()) {
        let (part, whole) = moved(progress);
        let mut shown = vec![bar(part, whole, canvas)];
        shown.extend(pieces);
        let mut rows = flow(&shown, 2, 2, 2, canvas.width);
        if let Some(first) = rows.first_mut() {
            first.insert_str(0, "  ");
        }
        lines.extend(rows);
    }
    if !message.is_empty() {
        let mut rows = flow(&words(&message), 1, 2, 2, canvas.width);
        if let Some(first) = rows.first_mut() {
            first.insert_str(0, "  ");
        }
        lines.extend(rows);
    }
    lines.truncate(canvas.height);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_with_equal_units_share_the_unit() {
        for (part, whole, expected) in [
            (0, 4 << 30, "0 B of 4 GiB"),
            (300 << 20, 4 << 30, "300 MiB of 4 GiB"),
            (2_300_000_000, 3_650_722_201, "2.1 of 3.3 GiB"),
        ] {
            assert_eq!(of_whole(part, whole), expected);
        }
        for (seconds, expected) in [(0, "0:00"), (38, "0:38"), (115, "1:55"), (3723, "1:02:03")] {
            assert_eq!(countdown(seconds), expected);
        }
    }
}
