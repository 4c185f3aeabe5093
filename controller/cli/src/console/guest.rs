//! Consoles and displays of guests that are open in a browser.
//!
//! ```text
//!  page of a guest (/api/live) ─opens─▶ OpenGuests ─▶ OpenGuest ◀─task─▶ GuestSocket ◀─▶ API server ◀─▶ guest
//!     rows of its console, its state ◀── changes ──┤
//!  /api/guest/input (keys, text, pointer) ────────▶├─▶ TerminalScreen: bytes ─▶ screen ─▶ rows of HTML
//!  /api/guest/frame (changes of a display) ◀───────┘└▶ Rfb: bytes ─▶ Framebuffer ─▶ rectangles of pixels
//! ```
//!
//! A guest is open as long as the stream of its page, so closing the tab closes the websocket. The browser does not
//! interpret the output of a guest: it receives escaped HTML or pixels.

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

/// Close code of a websocket after which the client may connect again (RFC 6455, 7.4.1 and its registry): the guest has
/// moved or was restarted, or the controller that relays the stream stops.
const AGAIN: u16 = 1012;
/// Time limit for connecting again after a close with [`AGAIN`].
const RECONNECT: Duration = Duration::from_secs(120);
/// Interval of the attempts to connect again.
const ATTEMPT: Duration = Duration::from_millis(500);
/// Message with which KubeVirt and Drydock refuse a display that another client has open (`preserveSession`).
const IN_USE: &str = "Active VNC connection";
/// Maximum number of bytes that wait to be sent to a serial console.
const MOST_INPUT: usize = 64 << 10;

/// The state of the connection to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamStatus {
    /// The websocket is being opened.
    Connecting,
    /// The websocket is open. If it replaces a closed one, the value is the reason for which that was closed.
    Connected(Option<String>),
    /// The websocket was closed for this reason, and a new one is being opened.
    Reconnecting(String),
    /// Another client uses the display.
    InUse,
    /// Another client has taken over the display, or the connection broke. The two cannot be distinguished.
    Lost,
    /// The connection has ended for this reason, and is not opened again.
    Ended(String),
}

/// State of a guest that a page shows.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// Identity with which the browser posts input and requests frames.
    pub(super) id: u64,
    pub(super) status: StreamStatus,
    pub(super) picture: Picture,
}

/// Visible state of a guest's console or display.
#[derive(Clone, Debug)]
pub(super) enum Picture {
    /// Rows of a serial console.
    Rows(Vec<Markup>),
    /// Width and height of a display in pixels, which the browser draws; `None` if they are not known yet.
    Size(Option<(u16, u16)>),
}

/// Input of the user for a guest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum UserInput {
    /// The user presses or releases a key.
    Key(KeyPress),
    /// The user pastes a text.
    Text { text: String },
    /// The user moves the pointer or changes its buttons, which are encoded as in `MouseEvent.buttons`.
    Pointer { x: u16, y: u16, buttons: u8 },
    /// The user turns the wheel by one step.
    Wheel { x: u16, y: u16, up: bool },
    /// The user sends Ctrl, Alt and Delete.
    CtrlAltDelete,
    /// The guest loses the focus of the keyboard.
    Release,
}

enum StreamScreen {
    /// A serial console, with the bytes that wait to be sent to it.
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
    /// Counter that grows with each change of the shown content.
    changes: watch::Sender<u64>,
    /// Notification that output for the guest is waiting.
    output: Notify,
    /// Notification that the display has changed.
    frames: Notify,
}

/// All open consoles and displays.
pub(super) struct OpenGuests {
    process: Process,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenGuest>>>,
    budget: Budget,
}

/// An open console or display. Dropping the value closes it.
pub(super) struct Opened {
    id: u64,
    guest: Arc<OpenGuest>,
    guests: Arc<OpenGuests>,
    cancelled: CancellationToken,
}

impl OpenGuests {
    /// Returns an empty collection. `process` runs the tasks of the guests.
    pub(super) fn new(process: &Process) -> Arc<Self> {
        Arc::new(Self {
            process: process.clone(),
            next: AtomicU64::new(1),
            open: Mutex::default(),
            budget: Budget::default(),
        })
    }

    /// Returns the open console or display with this identity.
    pub(super) fn find(&self, id: u64) -> Option<Arc<OpenGuest>> {
        self.open.lock().get(&id).cloned()
    }

    /// Opens the console or the display of a guest. A console is taken from its current client, because the API
    /// requires that.
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
                // The size is constant and never rejected. If it were, the page would show the error.
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
    /// Connects, and connects again until the connection ends for good.
    async fn run<Connect, Future>(&self, connect: Connect)
    where
        Connect: Fn() -> Future,
        Future: std::future::Future<Output = Result<GuestSocket, HandshakeError>>,
    {
        // Reason for which the last connection was closed, and the time of the close.
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

    /// Forwards bytes until the connection ends. Returns the state after that.
    async fn relay(&self, mut socket: GuestSocket, reason: Option<String>) -> StreamStatus {
        if let StreamScreen::Display(rfb) = &mut self.state.lock().screen {
            rfb.restart();
        }
        self.set(StreamStatus::Connected(reason));
        loop {
            let output = self.take_output();
            if !output.is_empty() {
                // If sending fails, the next event has the reason.
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

    /// Updates the shown content with the output of the guest.
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

    /// Passes on the input of the user in its order. Input for a guest that is not connected is dropped.
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

    /// Waits until a display of this size changes, and returns the changes. Returns an empty portion if nothing changes
    /// within `patience`, and `None` if the display has another size.
    pub(super) async fn frame(&self, size: (u16, u16), patience: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + patience;
        loop {
            // The notification is requested before the display is read, so that no change in between is missed.
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

/// Appends bytes to the waiting output of a console. The bytes are dropped if the output would exceed [`MOST_INPUT`].
fn append(output: &mut Vec<u8>, bytes: &[u8]) {
    if output.len() + bytes.len() <= MOST_INPUT {
        output.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests;
