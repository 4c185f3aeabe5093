//! The output of drains that are being followed: lines, or a block that is drawn again.

use std::{io::Write, time::Duration};

use drydock_runtime::clock;
use drydock_view::{
    drain::{DrainEvent, summary},
    live::{Block, NodeCourse, block},
};
use jiff::{Timestamp, tz::TimeZone};
use tokio::time::Instant;

use super::course::FollowedDrain;
use crate::{arguments::CourseOutput, failure::CommandError, output, screen::Screen};

/// Time without a change after which a line shows the current state of a drain.
const UNCHANGED_FOR: Duration = Duration::from_secs(30);
/// Minimum interval between two drawings of a block.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Maximum interval between two drawings of a block, because it shows remaining times.
const TICK: Duration = Duration::from_secs(1);

/// Output of the course of drains.
pub(super) enum Show {
    /// One line for each change.
    Lines {
        /// Whether each line is a JSON object.
        json: bool,
        /// Time of the last line.
        last: Instant,
    },
    /// A block on a terminal.
    Block {
        /// Terminal of the block.
        screen: Box<Screen>,
        /// Time of the next drawing.
        next: Instant,
        /// Time of the last drawing.
        last: Option<Instant>,
    },
}

impl Show {
    /// Returns a block if there is a terminal and the requested output is text. Returns lines otherwise.
    pub(super) fn new(output: CourseOutput, screen: Option<Screen>) -> Self {
        let now = Instant::now();
        match (output, screen) {
            (CourseOutput::Text, Some(screen)) => Self::Block {
                screen: Box::new(screen),
                next: now,
                last: None,
            },
            (output, _) => Self::Lines {
                json: output == CourseOutput::Json,
                last: now,
            },
        }
    }

    /// Returns whether the output is a block, which shows more than changes.
    pub(super) fn is_block(&self) -> bool {
        matches!(self, Self::Block { .. })
    }

    /// Returns the time of the next refresh.
    pub(super) fn due(&self) -> Instant {
        match self {
            Self::Lines { last, .. } => *last + UNCHANGED_FOR,
            Self::Block { next, .. } => *next,
        }
    }

    /// Prints events as lines, or schedules the next drawing of a block.
    ///
    /// # Errors
    /// If the events cannot be written.
    pub(super) fn changed(&mut self, events: &[DrainEvent], out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            Self::Block { next, last, .. } => {
                let earliest = last.map_or_else(Instant::now, |last| last + DRAW_EVERY);
                *next = (*next).min(earliest);
            }
            Self::Lines { json, last } => {
                for event in events {
                    print(event, *json, out)?;
                    *last = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Reports that the API server cannot be reached. A block shows this itself.
    pub(super) fn unreachable(&mut self, cause: &str) {
        if !self.is_block() {
            eprintln!("no updates: the API server cannot be reached ({cause}); the drain continues in the cluster");
        }
    }

    /// Refreshes the output if that is due. `goes_on` is false for the last refresh.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub(super) fn refresh(
        &mut self,
        courses: &[FollowedDrain],
        unreachable_since: Option<Timestamp>,
        goes_on: bool,
        out: &mut dyn Write,
    ) -> Result<(), CommandError> {
        let now = Instant::now();
        if goes_on && now < self.due() {
            return Ok(());
        }
        match self {
            Self::Lines { json, last } => {
                let open = courses.iter().filter(|course| course.exit.is_none() && goes_on);
                for course in open {
                    if let Some(drain) = course.shown.drain.as_ref().filter(|drain| drain.finished_at.is_none()) {
                        print(&summary(clock::now(), course.node(), drain), *json, out)?;
                    }
                }
                *last = now;
            }
            Self::Block { screen, next, last } => {
                let nodes: Vec<&NodeCourse> = courses.iter().map(|course| &course.shown).collect();
                let canvas = screen.canvas();
                let lines = block(
                    &Block {
                        nodes: &nodes,
                        now: clock::now(),
                        zone: &TimeZone::system(),
                        unreachable_since,
                        goes_on,
                    },
                    canvas,
                );
                screen.draw(lines, canvas, out)?;
                (*next, *last) = (now + TICK, Some(now));
            }
        }
        Ok(())
    }
}

/// Prints an event.
pub(super) fn print(event: &DrainEvent, json: bool, out: &mut dyn Write) -> Result<(), CommandError> {
    if json {
        output::document(out, "DrainEvent", event)?;
    } else {
        writeln!(out, "{}", event.line())?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn block_is_drawn_at_most_four_times_a_second() {
        let terminal = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut show = Show::new(CourseOutput::Text, Some(Screen::new(terminal.into(), false)));
        let mut out = Vec::new();
        let began = Instant::now();
        let courses = [FollowedDrain::new("worker-1")];
        show.refresh(&courses, None, true, &mut out).unwrap();
        assert!(
            out.starts_with(b"\r\x1b[2Kworker-1  no drain yet\n"),
            "{:?}",
            String::from_utf8_lossy(&out)
        );
        assert_eq!(show.due(), began + TICK);
        for _ in 0..3 {
            show.changed(&[], &mut out).unwrap();
            assert_eq!(show.due(), began + DRAW_EVERY);
        }
        let written = out.len();
        // The first refresh is not due yet. At the second one, nothing visible has changed.
        show.refresh(&courses, None, true, &mut out).unwrap();
        tokio::time::advance(DRAW_EVERY).await;
        show.refresh(&courses, None, true, &mut out).unwrap();
        assert_eq!(out.len(), written);
        assert_eq!(show.due(), began + DRAW_EVERY + TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_line_reports_remaining_guests_of_a_drain() {
        let mut show = Show::new(CourseOutput::Lines, None);
        let mut course = FollowedDrain::new("worker-1");
        let drain = serde_json::json!({"startedAt": "2026-11-27T14:00:00Z", "total": 3, "left": 3, "moving": 2, "waiting": 0,
            "blocked": 1, "shuttingDown": 0});
        course.drain(
            Some(serde_json::from_value(drain).unwrap()),
            "2026-11-27T14:00:00Z".parse().unwrap(),
        );
        let courses = [course];
        let mut out = Vec::new();
        show.refresh(&courses, None, true, &mut out).unwrap();
        assert_eq!(out, b"");
        tokio::time::advance(UNCHANGED_FOR).await;
        show.refresh(&courses, None, true, &mut out).unwrap();
        let line = String::from_utf8(out).unwrap();
        assert!(line.ends_with(" worker-1 - Emptying - 2 moving, 1 blocked\n"), "{line}");
    }
}
