//! Renders guests that are still on a node, each with one or more lines.

use std::sync::Arc;

use drydock_api::{
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::VirtualMachineInstanceMigration,
};
use jiff::Timestamp;

use super::{
    Canvas, ColouredLine, NARROW, NodeCourse, Tone,
    flow::{flow, words},
    live_migration::pieces,
};

/// Column at which names begin.
const NAME: usize = 12;
/// Minimum number of columns for a message on the same line as the name.
const MESSAGE: usize = 24;

/// Priorities of entries, in the order in which they are kept if not all of them fit.
pub(super) mod priority {
    /// Guests that are blocked. They are kept before all others.
    pub(in super::super) const BLOCKED: u8 = 0;
    /// Guests that are being migrated.
    pub(in super::super) const MOVING: u8 = 1;
    /// Guests that are being shut down.
    pub(in super::super) const STOPPING: u8 = 2;
    /// Pods without guests that the maintenance waits for.
    pub(in super::super) const PODS: u8 = 3;
    /// Guests that wait for their migration, and all others.
    pub(in super::super) const WAITING: u8 = 4;

    /// Returns the position in the order of display. Entries that need attention are nearest to the end.
    pub(in super::super) fn of_display(priority: u8) -> u8 {
        match priority {
            MOVING => 0,
            STOPPING => 1,
            WAITING => 2,
            PODS => 3,
            _ => 4,
        }
    }
}

/// The lines of an entry.
#[derive(Clone, Debug)]
pub(super) struct GuestLines {
    /// Index of the entry's node.
    pub(super) node: usize,
    /// Priority of the entry, from [`priority`].
    pub(super) priority: u8,
    /// Whether the entry is a guest. Guests that are not shown are counted.
    pub(super) is_guest: bool,
    /// Lines of the entry.
    pub(super) lines: Vec<ColouredLine>,
}

/// Column widths that all entries share.
#[derive(Debug, Default)]
pub(super) struct Columns {
    name: usize,
    pieces: [usize; 3],
}

impl Columns {
    /// Returns the column widths for these guests. Names that leave too little space for a message are ignored.
    pub(super) fn of<'a>(
        guests: impl Iterator<Item = (&'a NodeCourse, &'a RemainingGuest)>,
        now: Timestamp,
        canvas: Canvas,
    ) -> Self {
        let most = canvas.width.saturating_sub(NAME + 2 + MESSAGE);
        let mut columns = Self::default();
        for (node, guest) in guests {
            let name = full_name(guest).chars().count();
            if name <= most {
                columns.name = columns.name.max(name);
            }
            let pieces = moving(node, guest).map(|migration| pieces(migration, now));
            for (width, piece) in columns.pieces.iter_mut().zip(pieces.unwrap_or_default()) {
                *width = (*width).max(piece.chars().count());
            }
        }
        columns
    }

    /// Returns the lines of a guest.
    pub(super) fn entry(
        &self,
        index: usize,
        node: &NodeCourse,
        guest: &RemainingGuest,
        now: Timestamp,
        canvas: Canvas,
    ) -> GuestLines {
        let (label, rank, tone) = match guest.state {
            RemainingState::Blocked => ("BLOCKED", priority::BLOCKED, Tone::Bad),
            RemainingState::Moving => ("moving", priority::MOVING, Tone::Good),
            RemainingState::ShuttingDown => ("stopping", priority::STOPPING, Tone::Plain),
            RemainingState::Waiting => ("waiting", priority::WAITING, Tone::Plain),
            RemainingState::Unknown => ("staying", priority::WAITING, Tone::Doubtful),
        };
        let progress = moving(node, guest)
            .map(|migration| pieces(migration, now))
            .filter(|pieces| !pieces.is_empty());
        let name = full_name(guest);
        let mut lines = match &progress {
            Some(pieces) => self.lines(label, &name, &self.aligned(pieces), pieces, 2, canvas),
            None => self.lines(label, &name, &guest.message, &words(&guest.message), 1, canvas),
        };
        if let Some(first) = lines.first_mut() {
            (first.word, first.tone) = (label, tone);
        }
        if guest.state == RemainingState::Blocked {
            let command = words(&format!("kubectl drydock explain vm {name}"));
            lines.extend(below(&command, 1, canvas));
        }
        GuestLines {
            node: index,
            priority: rank,
            is_guest: true,
            lines,
        }
    }

    /// Returns the lines about pods without guests.
    pub(super) fn pods(&self, index: usize, why: &str, canvas: Canvas) -> GuestLines {
        GuestLines {
            node: index,
            priority: priority::PODS,
            is_guest: false,
            lines: self.lines("waiting", "pods", why, &words(why), 1, canvas),
        }
    }

    /// Returns a label, a name and a message. The message is on the line of the name, or below it if the space is too
    /// small.
    fn lines(
        &self,
        label: &str,
        name: &str,
        message: &str,
        pieces: &[String],
        gap: usize,
        canvas: Canvas,
    ) -> Vec<ColouredLine> {
        let column = NAME + self.name + 2;
        let fits_beside = name.chars().count() <= self.name && column + MESSAGE <= canvas.width;
        let head = format!("  {label:<10}{name:<width$}", width = self.name);
        if fits_beside && column + message.chars().count() <= canvas.width {
            return vec![ColouredLine::plain(format!("{head}  {message}").trim_end().to_owned())];
        }
        // Pieces of progress that do not fit in one line are easier to read on lines of their own.
        if fits_beside && gap == 1 {
            let mut lines = flow(pieces, gap, column, column, canvas.width);
            if let Some(first) = lines.first_mut() {
                *first = format!("{head}  {first}").trim_end().to_owned();
            }
            return lines.into_iter().map(ColouredLine::plain).collect();
        }
        let head = [format!("{label:<9}"), name.to_owned()];
        let mut lines = flow(&head, 1, 2, 4, canvas.width);
        if let Some(first) = lines.first_mut() {
            *first = format!("  {first}").trim_end().to_owned();
        }
        let mut lines: Vec<ColouredLine> = lines.into_iter().map(ColouredLine::plain).collect();
        lines.extend(below(pieces, gap, canvas));
        lines
    }

    /// Returns pieces aligned to the columns.
    fn aligned(&self, pieces: &[String]) -> String {
        let widths = self.pieces.iter().copied().chain(std::iter::repeat(0));
        let cells = pieces.iter().zip(widths).map(|(piece, width)| {
            // Percentages are aligned to the right, like numbers.
            if piece.ends_with('%') {
                format!("{piece:>width$}")
            } else {
                format!("{piece:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// Returns pieces on lines below a name.
fn below(pieces: &[String], gap: usize, canvas: Canvas) -> Vec<ColouredLine> {
    if pieces.is_empty() {
        return Vec::new();
    }
    let indent = if canvas.width < NARROW { 4 } else { NAME };
    let mut lines = flow(pieces, gap, indent, indent, canvas.width);
    if let Some(first) = lines.first_mut() {
        *first = format!("{:indent$}{first}", "");
    }
    lines.into_iter().map(ColouredLine::plain).collect()
}

fn full_name(guest: &RemainingGuest) -> String {
    format!("{}/{}", guest.namespace, guest.name)
}

/// Returns the migration of a guest that is moving.
fn moving<'a>(node: &'a NodeCourse, guest: &RemainingGuest) -> Option<&'a Arc<VirtualMachineInstanceMigration>> {
    let mut migrations = node.migrations.iter();
    migrations
        .find(|migration| {
            migration.metadata.namespace.as_deref() == Some(&guest.namespace) && migration.spec.vmi_name == guest.name
        })
        .filter(|_| guest.state == RemainingState::Moving)
}
