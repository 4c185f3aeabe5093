//! A page that is open: all of it at first, and then what has changed.

use std::{convert::Infallible, time::Duration};

use drydock_runtime::{
    chain,
    clock::{self, Instant},
};
use drydock_view::check::Report;
use futures::{Stream, stream};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};

use super::{
    Active,
    page::{Page, Update, difference},
    pages::{Context, render},
    rights::Rights,
    view::{Path, View},
};
use crate::check;

/// Time between two updates: changes in between are one. With the time that a page of 500 nodes takes (27 ms), a change is
/// shown within a quarter of a second.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after which a page is made again without a change, because it has relative times, and after which the browser gets a
/// line in any case. It takes the connection for broken after four of these.
const TICK: Duration = Duration::from_secs(5);
/// Time after which rights are reviewed again.
const REVIEW: Duration = Duration::from_secs(30);

/// A page that is open.
struct Open {
    active: Active,
    path: Path,
    changes: watch::Receiver<u64>,
    shown: Option<Page>,
    seq: u64,
    sent: Instant,
    rights: Rights,
    reviewed: Option<Instant>,
    report: Option<Result<Report, String>>,
}

/// Returns the lines for a page.
pub(super) fn lines(active: Active, path: Path) -> impl Stream<Item = Result<String, Infallible>> {
    let open = Open {
        changes: active.0.store.changes(),
        active,
        path,
        shown: None,
        seq: 0,
        sent: Instant::now(),
        rights: Rights::default(),
        reviewed: None,
        report: None,
    };
    stream::unfold(open, |mut open| async move {
        let line = open.next().await;
        Some((Ok(line + "\n"), open))
    })
}

impl Open {
    /// Returns the next line.
    async fn next(&mut self) -> String {
        if self.shown.is_none() {
            self.active.0.store.wait_until_synced().await;
        } else {
            // An error is the end of the store, with which the process ends.
            let changed = timeout(TICK, self.changes.changed()).await.is_ok();
            if changed {
                sleep_until(self.sent + PAUSE).await;
                self.changes.mark_unchanged();
            }
        }
        self.review().await;
        if self.path.view == View::Check && self.report.is_none() {
            let found = check::report(&self.active.0.client, clock::now()).await;
            self.report = Some(found.map_err(|failure| chain(&failure).to_string()));
        }
        let page = self.render();
        self.seq += 1;
        self.sent = Instant::now();
        let update = match &self.shown {
            None => Some(Update::Snapshot {
                seq: self.seq,
                title: &page.title,
                parts: &page.parts,
            }),
            Some(shown) => difference(shown, &page, self.seq),
        };
        let line = match update {
            // It cannot fail: an update has strings and numbers only.
            Some(update) => serde_json::to_string(&update).unwrap_or_default(),
            None => json!({"kind": "alive", "seq": self.seq}).to_string(),
        };
        self.shown = Some(page);
        line
    }

    async fn review(&mut self) {
        let shared = &self.active.0;
        if shared.read_only {
            self.rights = Rights::none("this console was started with --read-only");
        } else if self.reviewed.is_none_or(|at| at.elapsed() > REVIEW) && shared.store.stale_since().is_none() {
            self.rights = Rights::review(&shared.client).await;
            self.reviewed = Some(Instant::now());
        }
    }

    fn render(&self) -> Page {
        let shared = &self.active.0;
        let now = clock::now();
        let snapshot = shared.store.snapshot(now);
        let context = Context {
            snapshot: &snapshot,
            now,
            rights: &self.rights,
            stale_since: shared.store.stale_since(),
            report: self.report.as_ref(),
            cluster: &shared.cluster,
        };
        render(&self.path, &context)
    }
}
