//! The course of drains as a block of lines that a terminal shows and replaces at each change.
//!
//! ```text
//!  report of the drain, unfinished migrations ─▶ NodeCourse ─┐
//!  time, what the API server has not sent ───────────────────┴─▶ block ─▶ at most as many lines as the terminal has
//! ```

mod flow;
mod live_guests;
mod live_migration;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use drydock_api::{
    hypervisor::{DrainStatus, RemainingGuest},
    kubevirt::VirtualMachineInstanceMigration,
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use flow::{flow, words};
use live_guests::{Columns, GuestLines, priority};

pub(crate) use live_migration::amounts;
pub use live_migration::{describe, migration};

/// Width in columns below which bars are shorter, and messages are on the line after the name.
const NARROW: usize = 60;
/// Height in lines below which no hints are shown.
const SHORT: usize = 8;
/// Number of nodes up to which the hint lists all names.
const NAMED: usize = 3;

/// Drain of a node that is being followed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeCourse {
    /// Name of the node.
    pub name: String,
    /// Last report of the controller, if there is one.
    pub drain: Option<DrainStatus>,
    /// Unfinished migrations from the node.
    pub migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
    /// Pods without guests that the maintenance waits for, in one sentence.
    pub pods: Option<String>,
    /// Result of the drain, once it has ended.
    pub end: Option<DrainEnd>,
}

/// Result of a drain that was being followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainEnd {
    /// The node is empty.
    Empty,
    /// A user has ended the maintenance.
    Cancelled,
    /// The maintenance has failed, for this reason.
    Failed(String),
    /// The drain cannot be followed any longer, for this reason.
    Unread(String),
}

/// Content of a block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Drains in the order of display.
    pub nodes: &'a [&'a NodeCourse],
    /// Current time.
    pub now: Timestamp,
    /// Time zone in which times of day are shown.
    pub zone: &'a TimeZone,
    /// Time since which the API server has sent nothing, if the connection is broken.
    pub unreachable_since: Option<Timestamp>,
    /// Whether the view continues. Hints are shown only if it does.
    pub goes_on: bool,
}

/// Size and capabilities of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Width in columns.
    pub width: usize,
    /// Height in lines.
    pub height: usize,
    /// Whether the terminal may show colours. A colour never has a meaning that the text does not have.
    pub colour: bool,
}

/// Colour of a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Doubtful,
}

/// A line in which the first occurrence of a word is coloured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ColouredLine {
    text: String,
    word: &'static str,
    tone: Tone,
}

impl ColouredLine {
    fn plain(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    fn shown(self, canvas: Canvas) -> String {
        let colour = match self.tone {
            _ if !canvas.colour => return self.text,
            Tone::Plain => return self.text,
            Tone::Good => "32",
            Tone::Bad => "1;31",
            Tone::Doubtful => "33",
        };
        let painted = format!("\x1b[{colour}m{}\x1b[0m", self.word);
        self.text.replacen(self.word, &painted, 1)
    }
}

/// Returns the block as lines that fit the width and the height of the canvas.
///
/// If guests do not fit, blocked ones are shown first, then the moving ones. The rest are counted. Names and commands
/// are never truncated: they continue on the next line.
pub fn block(block: &Block<'_>, canvas: Canvas) -> Vec<String> {
    let hints = hints(block, canvas);
    let room = canvas.height.saturating_sub(hints.len());
    let (heads, hidden_nodes) = heads(block, canvas, room);
    let used: usize = heads.iter().map(|(_, head)| head.len()).sum();
    let room = room.saturating_sub(used + usize::from(hidden_nodes > 0));
    let (entries, hidden) = entries(&heads, block, canvas, room);
    let mut lines = Vec::new();
    for (index, (_, head)) in heads.into_iter().enumerate() {
        lines.extend(head);
        let of_node = entries.iter().filter(|entry| entry.node == index);
        lines.extend(of_node.flat_map(|entry| entry.lines.clone()));
    }
    if hidden > 0 {
        lines.extend(sentence(&format!("and {hidden} more"), 2, canvas));
    }
    if hidden_nodes > 0 {
        lines.extend(sentence(&format!("and {hidden_nodes} more nodes"), 0, canvas));
    }
    lines.extend(hints);
    lines.truncate(canvas.height);
    lines.into_iter().map(|line| line.shown(canvas)).collect()
}

/// Returns a sentence as wrapped and indented lines.
fn sentence(text: &str, indent: usize, canvas: Canvas) -> Vec<ColouredLine> {
    let mut lines = flow(&words(text), 1, indent, indent, canvas.width);
    if let Some(first) = lines.first_mut().filter(|_| indent < canvas.width) {
        first.insert_str(0, &" ".repeat(indent));
    }
    lines.into_iter().map(ColouredLine::plain).collect()
}

/// Returns the time of day. The date is added if the time is 18 hours or more from now.
fn clock(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let is_near = at.duration_since(now).abs() < SignedDuration::from_hours(18);
    let format = if is_near { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    at.to_zoned(zone.clone()).strftime(format).to_string()
}

/// Returns a progress bar like `[###.....]` with 24 columns, or 10 on a narrow canvas.
fn bar(share: u64, whole: u64, canvas: Canvas) -> String {
    let columns: usize = if canvas.width < NARROW { 10 } else { 24 };
    let whole = whole.max(1);
    let filled = u128::from(share.min(whole)) * columns as u128 / u128::from(whole);
    let filled = usize::try_from(filled).unwrap_or(columns);
    format!("[{}{}]", "#".repeat(filled), ".".repeat(columns - filled))
}

/// Returns the head lines of the nodes that fit into `room` lines, and the number of the other nodes. If not all of
/// them fit, drains that have not ended come first.
fn heads<'a>(block: &Block<'a>, canvas: Canvas, room: usize) -> (Vec<(&'a NodeCourse, Vec<ColouredLine>)>, usize) {
    let mut all: Vec<_> = block
        .nodes
        .iter()
        .map(|node| (*node, head(node, block, canvas)))
        .collect();
    let total: usize = all.iter().map(|(_, head)| head.len()).sum();
    if total <= room {
        return (all, 0);
    }
    all.sort_by_key(|(node, _)| node.end.is_some());
    let count = all.len();
    let mut left = room.saturating_sub(1);
    let mut shown = Vec::new();
    for (node, head) in all {
        let Some(rest) = left.checked_sub(head.len()) else {
            break;
        };
        left = rest;
        shown.push((node, head));
    }
    let hidden = count - shown.len();
    (shown, hidden)
}

fn head(node: &NodeCourse, block: &Block<'_>, canvas: Canvas) -> Vec<ColouredLine> {
    let (word, tone) = match (&node.end, &node.drain) {
        (Some(DrainEnd::Empty), _) => ("empty", Tone::Good),
        (Some(DrainEnd::Cancelled), _) => ("cancelled", Tone::Bad),
        (Some(DrainEnd::Failed(_)), _) => ("failed", Tone::Bad),
        (Some(DrainEnd::Unread(_)), _) => ("not followed", Tone::Bad),
        (None, None) => ("no drain yet", Tone::Plain),
        (None, Some(_)) => ("emptying", Tone::Plain),
    };
    let mut pieces = vec![node.name.clone(), word.to_owned()];
    if let Some(drain) = &node.drain {
        let gone = drain.total.saturating_sub(drain.left);
        pieces.push(bar(gone.into(), drain.total.into(), canvas));
        pieces.push(format!("{gone} of {} gone", drain.total));
        let end = drain.estimated_end.as_ref();
        if let Some(end) = end.filter(|_| node.end.is_none() && drain.finished_at.is_none()) {
            pieces.push(format!("ends {}", clock(end.0, block.now, block.zone)));
        }
    }
    if node.end == Some(DrainEnd::Empty) {
        pieces.push("safe to switch off".into());
    }
    let lines = flow(&pieces, 2, 0, 2, canvas.width);
    let mut lines: Vec<ColouredLine> = lines.into_iter().map(ColouredLine::plain).collect();
    // A node whose name contains the same word is not coloured, because the first occurrence would be in the name.
    if let Some(line) = lines
        .iter_mut()
        .find(|line| line.text.contains(word) && !node.name.contains(word))
    {
        (line.word, line.tone) = (word, tone);
    }
    if let Some(DrainEnd::Failed(why) | DrainEnd::Unread(why)) = &node.end {
        lines.extend(sentence(why, 2, canvas));
    }
    lines
}

/// Returns the entries that fit into `room` lines, in the order of display, and the number of guests that are not
/// shown.
fn entries(
    heads: &[(&NodeCourse, Vec<ColouredLine>)],
    block: &Block<'_>,
    canvas: Canvas,
    room: usize,
) -> (Vec<GuestLines>, usize) {
    let open = heads.iter().enumerate().filter(|(_, (node, _))| node.end.is_none());
    let nodes: Vec<(usize, &NodeCourse)> = open.map(|(index, (node, _))| (index, *node)).collect();
    let guests: Vec<(usize, &NodeCourse, &RemainingGuest)> = nodes
        .iter()
        .flat_map(|(index, node)| {
            let remaining = node.drain.iter().flat_map(|drain| &drain.remaining);
            remaining.map(|guest| (*index, *node, guest))
        })
        .collect();
    let columns = Columns::of(guests.iter().map(|(_, node, guest)| (*node, *guest)), block.now, canvas);
    let mut all: Vec<GuestLines> = guests
        .iter()
        .map(|(index, node, guest)| columns.entry(*index, node, guest, block.now, canvas))
        .collect();
    for (index, node) in &nodes {
        all.extend(node.pods.as_ref().map(|why| columns.pods(*index, why, canvas)));
    }
    let unlisted: usize = nodes
        .iter()
        .filter_map(|(_, node)| node.drain.as_ref())
        .map(|drain| (drain.left as usize).saturating_sub(drain.remaining.len()))
        .sum();
    all.sort_by_key(|entry| entry.priority);
    let total: usize = all.iter().map(|entry| entry.lines.len()).sum();
    let mut left = if total <= room && unlisted == 0 {
        room
    } else {
        room.saturating_sub(1)
    };
    let count = all.iter().filter(|entry| entry.is_guest).count();
    let mut shown = Vec::new();
    for entry in all {
        let Some(rest) = left.checked_sub(entry.lines.len()) else {
            break;
        };
        left = rest;
        shown.push(entry);
    }
    let hidden = count - shown.iter().filter(|entry| entry.is_guest).count();
    shown.sort_by_key(|entry| priority::of_display(entry.priority));
    (shown, hidden + unlisted)
}

/// Returns the last lines of the block: the state of the connection, and the effect of Ctrl-C.
fn hints(block: &Block<'_>, canvas: Canvas) -> Vec<ColouredLine> {
    let mut lines = Vec::new();
    if let Some(since) = block.unreachable_since {
        let since = since.to_zoned(block.zone.clone()).strftime("%H:%M:%S").to_string();
        let text =
            format!("no updates since {since}: the API server cannot be reached; the drain continues in the cluster");
        let mut wrapped = flow(&words(&text), 1, 0, 2, canvas.width).into_iter();
        lines.extend(wrapped.next().map(|text| ColouredLine {
            text,
            word: "no updates",
            tone: Tone::Doubtful,
        }));
        lines.extend(wrapped.map(ColouredLine::plain));
    }
    let open: Vec<&str> = block
        .nodes
        .iter()
        .filter(|node| node.end.is_none())
        .map(|node| node.name.as_str())
        .collect();
    if block.goes_on && canvas.height >= SHORT && !open.is_empty() {
        let names = if open.len() > NAMED {
            "NODE...".to_owned()
        } else {
            open.join(" ")
        };
        for text in [
            "Ctrl-C ends this view, not the drain.".to_owned(),
            format!("To cancel the drain: kubectl drydock maintenance stop {names}"),
        ] {
            lines.extend(
                flow(&words(&text), 1, 0, 2, canvas.width)
                    .into_iter()
                    .map(ColouredLine::plain),
            );
        }
    }
    lines
}
