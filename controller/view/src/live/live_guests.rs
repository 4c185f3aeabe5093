//! Guests that are still on a node, each as one line or a few.

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

/// Column of names.
const NAME: usize = 12;
/// A message is beside a name only if this many columns are left for it.
const MESSAGE: usize = 24;

/// In which order guests are shown.
pub(super) mod priority {
    /// Guests that are blocked: never left out for others.
    pub(in super::super) const BLOCKED: u8 = 0;
    /// Guests that move.
    pub(in super::super) const MOVING: u8 = 1;
    /// Guests that are being shut down.
    pub(in super::super) const STOPPING: u8 = 2;
    /// Other pods that the maintenance waits for.
    pub(in super::super) const PODS: u8 = 3;
    /// Guests whose turn will come, and all others.
    pub(in super::super) const WAITING: u8 = 4;

    /// Returns the place among the shown lines: those that need attention are nearest to the end.
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

/// The lines of a guest.
#[derive(Clone, Debug)]
pub(super) struct GuestLines {
    /// Index of its node.
    pub(super) node: usize,
    /// One of [`priority`].
    pub(super) priority: u8,
    /// Whether it is a guest, which is counted if it is not shown.
    pub(super) is_guest: bool,
    /// The lines.
    pub(super) lines: Vec<ColouredLine>,
}

/// Widths of columns that all guests share.
#[derive(Debug, Default)]
pub(super) struct Columns {
    name: usize,
    pieces: [usize; 3],
}

impl Columns {
    /// Returns the widths for these guests. Names that leave no room for a message do not count.
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

    /// Returns the lines about pods that are no guests.
    pub(super) fn pods(&self, index: usize, why: &str, canvas: Canvas) -> GuestLines {
        GuestLines {
            node: index,
            priority: priority::PODS,
            is_guest: false,
            lines: self.lines("waiting", "pods", why, &words(why), 1, canvas),
        }
    }

    /// Returns a label, a name and a message beside it, or below it if there is too little room.
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
        // Pieces that do not fit in one line are clearer together below the name.
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

    /// Returns pieces as columns.
    fn aligned(&self, pieces: &[String]) -> String {
        let widths = self.pieces.iter().copied().chain(std::iter::repeat(0));
        let cells = pieces.iter().zip(widths).map(|(piece, width)| {
            // Percentages are numbers.
            if piece.ends_with('%') {
                format!("{piece:>width$}")
            } else {
                format!("{piece:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// Returns lines below a name.
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

/// Returns the migration by which a guest moves.
fn moving<'a>(node: &'a NodeCourse, guest: &RemainingGuest) -> Option<&'a Arc<VirtualMachineInstanceMigration>> {
    let mut migrations = node.migrations.iter();
    migrations
        .find(|migration| {
            migration.metadata.namespace.as_deref() == Some(&guest.namespace) && migration.spec.vmi_name == guest.name
        })
        .filter(|_| guest.state == RemainingState::Moving)
}
