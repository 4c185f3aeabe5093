//! Consoles and displays of guests that are open in a browser.
//!
//! ```text
//!  page of a guest (/api/live) ─opens─▶ OpenGuests ─▶ OpenGuest ◀─task─▶ GuestSocket ◀─▶ API server ◀─▶ guest
//!     rows of its console, its state ◀── changes ──┤
//!  /api/guest/input (keys, text, pointer) ────────▶├─▶ TerminalScreen: bytes ─▶ screen ─▶ rows of HTML
//!  /api/guest/frame (what of a display changed) ◀──┘└▶ Rfb: bytes ─▶ Framebuffer ─▶ rectangles of pixels
//! ```
//!
//! A guest is open as long as the stream of its page: closing the tab closes the websocket. The browser interprets nothing
//! that a guest sends; it gets HTML, in which everything is escaped, or pixels.

mod framebuffer;
mod guest_requests;
mod keys;
mod rfb;
mod socket;
mod terminal;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use drydock_runtime::{CancellationToken, Process, chain};
use framebuffer::Budget;
use keys::KeyPress;
use kube::Client;
use maud::Markup;
use parking_lot::Mutex;
use rfb::Rfb;
use serde::Deserialize;
use socket::{GuestSocket, HandshakeError, SocketEvent};
use terminal::TerminalScreen;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use super::view::GuestDevice;
pub(super) use guest_requests::{FRAME, INPUT, frame, input};
pub(super) use terminal::{COLUMNS, ROWS};

/// Close code of a websocket after which the client may connect again: the guest has moved, or was restarted, or the
/// controller that relays it stops (RFC 6455, 7.4.1 and its registry).
const AGAIN: u16 = 1012;
/// Time in which a connection that was closed with [`AGAIN`] has to be there again.
const RECONNECT: Duration = Duration::from_secs(120);
/// Time between two attempts for that.
const ATTEMPT: Duration = Duration::from_millis(500);
/// Message with which KubeVirt and Drydock refuse a display that another client has open (`preserveSession`).
const IN_USE: &str = "Active VNC connection";
/// Bytes to a serial console that may wait.
const MOST_INPUT: usize = 64 << 10;

/// The state of the connection to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamStatus {
    /// The websocket is being opened.
    Connecting,
    /// It is open. If it replaces a closed connection, contains the reason why that was closed.
    Connected(Option<String>),
    /// It was closed for this reason, and another one is being opened.
    Reconnecting(String),
    /// Another client has the display.
    InUse,
    /// Another client has taken it, or the connection broke; the two cannot be distinguished.
    Lost,
    /// It has ended for this reason, and is not opened again.
    Ended(String),
}

/// The state of a guest that a page shows.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// The identity under which input is posted and frames are requested.
    pub(super) id: u64,
    pub(super) status: StreamStatus,
    pub(super) picture: Picture,
}

/// The visible state of a guest's console or display.
#[derive(Clone, Debug)]
pub(super) enum Picture {
    /// The rows of a serial console.
    Rows(Vec<Markup>),
    /// The width and height of a display in pixels, which the browser draws; `None` before they are known.
    Size(Option<(u16, u16)>),
}

/// Something that the user does with a guest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum UserInput {
    /// A key is pressed or released.
    Key(KeyPress),
    /// A text is pasted.
    Text { text: String },
    /// The pointer moves, or its buttons do: as in `MouseEvent.buttons`.
    Pointer { x: u16, y: u16, buttons: u8 },
    /// The wheel turns by a step.
    Wheel { x: u16, y: u16, up: bool },
    /// Ctrl, Alt and Delete.
    CtrlAltDelete,
    /// The guest does not get the keyboard any more.
    Release,
}

enum StreamScreen {
    /// With the bytes that are to be sent.
    Terminal(Box<TerminalScreen>, Vec<u8>),
    Display(Rfb),
}

struct ViewState {
    status: StreamStatus,
    screen: StreamScreen,
}

/// The console or the display of a guest.
pub(super) struct OpenGuest {
    state: Mutex<ViewState>,
    /// Grows with each change of what a page shows.
    changes: watch::Sender<u64>,
    /// There is something to be sent.
    output: Notify,
    /// There is something for the browser to draw.
    frames: Notify,
}

/// All that are open.
pub(super) struct OpenGuests {
    process: Process,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenGuest>>>,
    budget: Budget,
}

/// An open console or display, which closes when this is dropped.
pub(super) struct Opened {
    id: u64,
    guest: Arc<OpenGuest>,
    guests: Arc<OpenGuests>,
    cancelled: CancellationToken,
}

impl OpenGuests {
    /// Returns none, of a process that runs their tasks.
    pub(super) fn new(process: &Process) -> Arc<Self> {
        Arc::new(Self {
            process: process.clone(),
            next: AtomicU64::new(1),
            open: Mutex::default(),
            budget: Budget::default(),
        })
    }

    /// Returns the one with this identity, if it is open.
    pub(super) fn find(&self, id: u64) -> Option<Arc<OpenGuest>> {
        self.open.lock().get(&id).cloned()
    }

    /// Opens the console or the display of a guest. A console is taken from its current client, as the API requires.
    pub(super) fn open(
        self: &Arc<Self>,
        client: &Client,
        (namespace, name): (&str, &str),
        device: GuestDevice,
    ) -> Opened {
        let (screen, status) = match device {
            GuestDevice::Display { .. } => (
                StreamScreen::Display(Rfb::new(self.budget.clone())),
                StreamStatus::Connecting,
            ),
            GuestDevice::Console => match TerminalScreen::new() {
                Ok(terminal) => (
                    StreamScreen::Terminal(Box::new(terminal), Vec::new()),
                    StreamStatus::Connecting,
                ),
                // A constant size is never refused; the page would show it.
                Err(error) => (
                    StreamScreen::Display(Rfb::new(self.budget.clone())),
                    StreamStatus::Ended(error.to_string()),
                ),
            },
        };
        let guest = Arc::new(OpenGuest {
            state: Mutex::new(ViewState { status, screen }),
            changes: watch::Sender::new(0),
            output: Notify::new(),
            frames: Notify::new(),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(id, guest.clone());
        let cancelled = self.process.stopping().child_token();
        let (task, token, client) = (guest.clone(), cancelled.clone(), client.clone());
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.process.spawn("console or display of a guest", async move {
            let connect = || GuestSocket::open(&client, &namespace, &name, device);
            token.run_until_cancelled(task.run(connect)).await;
        });
        Opened {
            id,
            guest,
            guests: self.clone(),
            cancelled,
        }
    }
}

impl Opened {
    /// Returns a receiver of changes of the shown content.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.guest.changes.subscribe()
    }

    /// Returns the shown content.
    pub(super) fn shown(&self) -> Shown {
        let state = self.guest.state.lock();
        Shown {
            id: self.id,
            status: state.status.clone(),
            picture: match &state.screen {
                StreamScreen::Terminal(terminal, _) => Picture::Rows(terminal.rows()),
                StreamScreen::Display(rfb) => Picture::Size(rfb.size()),
            },
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.guests.open.lock().remove(&self.id);
        self.cancelled.cancel();
        self.guest.frames.notify_waiters();
    }
}

impl OpenGuest {
    /// Connects, and connects again as long as that makes sense.
    async fn run<Connect, Future>(&self, connect: Connect)
    where
        Connect: Fn() -> Future,
        Future: std::future::Future<Output = Result<GuestSocket, HandshakeError>>,
    {
        // Why the last one was closed, and since when there is none.
        let mut closed: Option<(String, Instant)> = None;
        loop {
            let is_late = closed.as_ref().is_none_or(|(_, at)| at.elapsed() > RECONNECT);
            match connect().await {
                Ok(socket) => {
                    let reason = closed.take().map(|(reason, _)| reason);
                    match self.relay(socket, reason).await {
                        StreamStatus::Reconnecting(reason) => {
                            self.set(StreamStatus::Reconnecting(reason.clone()));
                            closed = Some((reason, Instant::now()));
                        }
                        end => return self.set(end),
                    }
                }
                Err(HandshakeError::Status { code: 403, message }) => return self.set(StreamStatus::Ended(message)),
                Err(HandshakeError::Status { message, .. }) if message.contains(IN_USE) => {
                    return self.set(StreamStatus::InUse);
                }
                Err(refused) if is_late => return self.set(StreamStatus::Ended(chain(&refused).to_string())),
                Err(_) => {}
            }
            sleep(ATTEMPT).await;
        }
    }

    /// Forwards bytes until the connection ends, and returns its state then.
    async fn relay(&self, mut socket: GuestSocket, reason: Option<String>) -> StreamStatus {
        if let StreamScreen::Display(rfb) = &mut self.state.lock().screen {
            rfb.restart();
        }
        self.set(StreamStatus::Connected(reason));
        loop {
            let output = self.take_output();
            if !output.is_empty() {
                // If that fails, the next event has the reason.
                socket.send(output).await;
            }
            let event = tokio::select! {
                event = socket.next() => event,
                () = self.output.notified() => continue,
            };
            match event {
                SocketEvent::Data(bytes) => {
                    if let Err(error) = self.read(&bytes) {
                        return StreamStatus::Ended(error);
                    }
                }
                SocketEvent::Closed { code: AGAIN, reason } => return StreamStatus::Reconnecting(reason),
                SocketEvent::Closed { reason, .. } if reason.is_empty() => return StreamStatus::Lost,
                SocketEvent::Closed { reason, .. } => return StreamStatus::Ended(reason),
                SocketEvent::Lost => return StreamStatus::Lost,
            }
        }
    }

    fn set(&self, status: StreamStatus) {
        self.state.lock().status = status;
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Shows what the guest has sent.
    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let mut state = self.state.lock();
        match &mut state.screen {
            StreamScreen::Terminal(terminal, output) => {
                let replies = terminal.feed(bytes);
                append(output, &replies);
                drop(state);
                self.changed();
            }
            StreamScreen::Display(rfb) => {
                let before = rfb.size();
                rfb.feed(bytes).map_err(|error| error.to_string())?;
                let is_other = rfb.size() != before;
                let has_changed = rfb.frame().is_some_and(|frame| frame.has_changed());
                drop(state);
                if is_other {
                    self.changed();
                }
                if has_changed {
                    self.frames.notify_waiters();
                }
            }
        }
        Ok(())
    }

    fn take_output(&self) -> Vec<u8> {
        match &mut self.state.lock().screen {
            StreamScreen::Terminal(_, output) => std::mem::take(output),
            StreamScreen::Display(rfb) => {
                rfb.request();
                rfb.take_output()
            }
        }
    }

    /// Passes on what the user does, in its order. Nothing reaches a guest that is not connected.
    pub(super) fn input(&self, inputs: Vec<UserInput>) {
        let mut state = self.state.lock();
        if !matches!(state.status, StreamStatus::Connected(_)) {
            return;
        }
        for input in inputs {
            match &mut state.screen {
                StreamScreen::Terminal(terminal, output) => match input {
                    UserInput::Key(key) => append(output, &keys::bytes(&key, terminal.has_application_keys())),
                    UserInput::Text { text } => append(output, &keys::pasted(&text)),
                    UserInput::Pointer { .. }
                    | UserInput::Wheel { .. }
                    | UserInput::CtrlAltDelete
                    | UserInput::Release => {}
                },
                StreamScreen::Display(rfb) => match input {
                    UserInput::Key(key) => rfb.key(&key),
                    UserInput::Text { text } => rfb.text(&text),
                    UserInput::Pointer { x, y, buttons } => rfb.pointer(x, y, buttons),
                    UserInput::Wheel { x, y, up } => rfb.wheel(x, y, up),
                    UserInput::CtrlAltDelete => rfb.chord(&keys::CTRL_ALT_DELETE),
                    UserInput::Release => rfb.release(),
                },
            }
        }
        drop(state);
        self.output.notify_one();
    }

    /// Waits until a display with this size changes, and returns the changes; empty if there are none within
    /// `patience`, and `None` if the display has another size or is closed.
    pub(super) async fn frame(&self, size: (u16, u16), patience: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + patience;
        loop {
            // Before the look, so that no change in between is missed.
            let notified = self.frames.notified();
            if let StreamScreen::Display(rfb) = &mut self.state.lock().screen {
                let frame = rfb.frame().filter(|frame| (frame.width, frame.height) == size)?;
                let taken = frame.take();
                if !taken.is_empty() {
                    self.output.notify_one();
                    return Some(taken);
                }
            } else {
                return None;
            }
            tokio::select! {
                () = notified => {}
                () = tokio::time::sleep_until(end) => return Some(Vec::new()),
            }
        }
    }
}

/// Appends bytes to what waits for a guest, unless it takes nothing.
fn append(output: &mut Vec<u8>, bytes: &[u8]) {
    if output.len() + bytes.len() <= MOST_INPUT {
        output.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests;
