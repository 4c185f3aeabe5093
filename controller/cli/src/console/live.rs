//! An open page. The first update has the whole page, the next ones have its changes.

use std::{convert::Infallible, time::Duration};

use drydock_runtime::{
    chain,
    clock::{self, Instant},
};
use drydock_view::check::CheckReport;
use futures::{Stream, stream};
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};

use super::{
    Active, actions,
    guest::Opened,
    page::{Page, difference, whole},
    pages::{self, PageContext, guest_page::GuestPageContext, render},
    rights::Rights,
    view::{ConsoleView, ViewPath},
};
use crate::check;

/// Interval between two updates. All changes in between become one update. A page of 500 nodes needs 27 ms, so a change
/// is shown within a quarter of a second.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval between two updates of a guest's output. It is short enough for typing.
const GUEST_PAUSE: Duration = Duration::from_millis(30);
/// Time without a change after which a page is rendered again, because it contains relative times. The browser receives
/// a line at least at this interval, and considers the connection broken after four intervals without one.
const TICK: Duration = Duration::from_secs(5);
/// Time between two announcements to screen readers.
const ANNOUNCE: Duration = Duration::from_secs(10);
/// Interval of the reviews of the user's rights.
const REVIEW: Duration = Duration::from_secs(30);

/// State of an open page.
struct OpenPage {
    active: Active,
    path: ViewPath,
    changes: watch::Receiver<u64>,
    shown: Option<Page>,
    seq: u64,
    sent: Instant,
    /// Last announcement and its time.
    announced: Option<(String, Instant)>,
    rights: Rights,
    reviewed: Option<Instant>,
    report: Option<Result<CheckReport, String>>,
    /// Console or display of the page's guest, once it was opened.
    guest: Option<(Opened, watch::Receiver<u64>)>,
    /// Page without the content of the guest.
    base: Option<Page>,
    circumstances: GuestPageContext,
    /// Time of the last rendering. The next field is whether the page has to be rendered again.
    made: Instant,
    is_due: bool,
}

/// Returns the stream of lines for a page.
pub(super) fn lines(active: Active, path: ViewPath) -> impl Stream<Item = Result<String, Infallible>> {
    let circumstances = GuestPageContext {
        read_only: active.0.read_only,
        runs: true,
    };
    let open = OpenPage {
        circumstances,
        made: Instant::now(),
        is_due: false,
        changes: active.0.store.changes(),
        active,
        path,
        shown: None,
        seq: 0,
        announced: None,
        sent: Instant::now(),
        rights: Rights::default(),
        reviewed: None,
        report: None,
        guest: None,
        base: None,
    };
    stream::unfold(open, |mut open| async move {
        let line = open.next().await;
        Some((Ok(line + "\n"), open))
    })
}

/// Waits until the content of a guest changes. Without an open guest, the future never completes.
async fn changed(guest: &mut Option<(Opened, watch::Receiver<u64>)>) {
    if let Some((_, shown)) = guest
        && shown.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl OpenPage {
    /// Waits for the next update, and returns it as a line.
    async fn next(&mut self) -> String {
        let is_stale = self.wait().await;
        let page = match &self.base {
            Some(base) if !is_stale => base.clone(),
            _ => self.make().await,
        };
        let page = self.with_guest(page);
        self.seq += 1;
        self.sent = Instant::now();
        let mut update = match &self.shown {
            None => whole(&page, self.seq),
            Some(shown) => difference(shown, &page, self.seq),
        };
        let is_new = !page.announcement.is_empty()
            && self
                .announced
                .as_ref()
                .is_none_or(|(text, at)| *text != page.announcement && at.elapsed() > ANNOUNCE);
        if is_new {
            update.announce = Some(&page.announcement);
            self.announced = Some((page.announcement.clone(), Instant::now()));
        }
        // Serialization cannot fail, because an update has only strings and numbers. An update without a change shows
        // that the console is alive.
        let line = serde_json::to_string(&update).unwrap_or_default();
        self.shown = Some(page);
        line
    }

    /// Waits for a change. Returns whether the page has to be rendered again. Otherwise only the content of its guest
    /// has changed.
    async fn wait(&mut self) -> bool {
        if self.shown.is_none() {
            self.active.0.store.wait_until_synced().await;
            return true;
        }
        loop {
            // The output of a guest does not wait for changes of the cluster, which may be frequent.
            tokio::select! {
                // An error means that the store has ended. The process ends with it.
                _ = timeout(TICK, self.changes.changed()), if !self.is_due => self.is_due = true,
                () = sleep_until(self.made + PAUSE), if self.is_due => {
                    self.changes.mark_unchanged();
                    return true;
                }
                () = changed(&mut self.guest) => {
                    sleep_until(self.sent + GUEST_PAUSE).await;
                    return false;
                }
            }
        }
    }

    /// Renders the page. Opens its guest if the guest is available and not open yet.
    async fn make(&mut self) -> Page {
        self.review().await;
        if self.path.view == ConsoleView::Check && self.report.is_none() {
            let found = check::report(&self.active.0.client, clock::now()).await;
            self.report = Some(found.map_err(|failure| chain(&failure).to_string()));
        }
        let (page, runs, is_available) = self.with_context(|context| {
            let page = render(&self.path, context);
            match &self.path.view {
                ConsoleView::Guest {
                    namespace,
                    name,
                    device,
                } => {
                    let why = pages::guest_page::unavailable(namespace, name, *device, context);
                    (page, pages::guest_page::runs(namespace, name, context), why.is_none())
                }
                _ => (page, false, false),
            }
        });
        (self.circumstances.runs, self.is_due, self.made) = (runs, false, Instant::now());
        if let ConsoleView::Guest {
            namespace,
            name,
            device,
        } = &self.path.view
            && is_available
            && self.guest.is_none()
        {
            let shared = &self.active.0;
            let opened = shared.guests.open(&shared.client, (namespace, name), *device);
            let changes = opened.changes();
            self.guest = Some((opened, changes));
        }
        page
    }

    /// Keeps the page of a guest, and appends the content of the guest.
    fn with_guest(&mut self, mut page: Page) -> Page {
        if let ConsoleView::Guest { .. } = &self.path.view {
            self.base = Some(page.clone());
            if let Some((opened, changes)) = &mut self.guest {
                changes.mark_unchanged();
                pages::guest_page::show(&mut page, &self.path.view, &opened.shown(), self.circumstances);
            }
        }
        page
    }

    async fn review(&mut self) {
        let shared = &self.active.0;
        let is_due = self.reviewed.is_none_or(|at| at.elapsed() > REVIEW);
        if is_due && shared.store.stale_since().is_none() {
            let read_only = shared.read_only.then_some(actions::READ_ONLY);
            self.rights = Rights::review(&shared.client, self.path.view.machine(), read_only).await;
            self.reviewed = Some(Instant::now());
        }
    }

    fn with_context<T>(&self, with: impl FnOnce(&PageContext<'_>) -> T) -> T {
        let shared = &self.active.0;
        let now = clock::now();
        let snapshot = shared.store.snapshot(now);
        let context = PageContext {
            snapshot: &snapshot,
            now,
            rights: &self.rights,
            stale_since: shared.store.stale_since(),
            report: self.report.as_ref(),
            cluster: &shared.cluster,
        };
        with(&context)
    }
}
