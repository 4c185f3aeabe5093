//! The client of a guest's display. It implements the protocol RFB 3.8 (RFC 6143) without any I/O.
//!
//! ```text
//!  bytes of the guest ─▶ feed ─▶ Framebuffer ─▶ portions for the browser
//!  keys, pointer ─▶ key, pointer ─▶ take_output ─▶ bytes to the guest
//!                  request, once the browser has everything ─┘
//! ```
//!
//! The supported encodings are Raw, which every server has, CopyRect and the pseudo-encoding DesktopSize. A server uses
//! only encodings that its client has listed.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{
    framebuffer::{Budget, Framebuffer, PIXEL, Rectangle},
    keys::{self, KeyPress},
};

const VERSION: &[u8; 12] = b"RFB 003.008\n";
/// Security type without authentication. The API server has authorized the user.
const NONE: u8 = 1;
const RAW: i32 = 0;
const COPY: i32 = 1;
const DESKTOP_SIZE: i32 = -223;
/// Maximum number of bytes that are read from the text of a refusal.
const LONGEST_REASON: u32 = 1024;
/// Maximum number of bytes that wait to be sent to the guest: some thousand events.
const MOST_OUTPUT: usize = 64 << 10;

/// Reason why the display cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum RfbError {
    #[error("the display's protocol {0:?} is not supported; supported: \"RFB 003.008\"")]
    Version(String),
    #[error("the display's security types {0:?} are not supported; supported: 1 (none)")]
    Security(Vec<u8>),
    #[error("the display refuses the connection: {0}")]
    Refused(String),
    #[error("the display's message {0} is not supported; supported: 0 to 3")]
    Message(u8),
    #[error("the display's encoding {0} was not requested; requested: {RAW}, {COPY}, {DESKTOP_SIZE}")]
    Encoding(i32),
    #[error("the display's rectangle of {} x {} at {}, {} is outside of the display", .0.width, .0.height, .0.x, .0.y)]
    Outside(Rectangle),
    #[error("{0}")]
    Size(String),
}

/// Next item that the server sends. Each item has a length in bytes, see [`Rfb::length`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMessage {
    Version,
    /// Number of security types.
    SecurityCount,
    SecurityTypes(u8),
    SecurityResult,
    ReasonLength,
    Reason(u32),
    Start,
    /// Kind of a message.
    Message,
    /// Number of rectangles of an update.
    UpdateCount,
    Colours,
    CutText,
    /// Number of bytes to skip.
    Skip(u32),
    Rectangle,
    /// One row of pixels of a rectangle.
    Row(Rectangle, u16),
    /// Position from which the pixels of a rectangle are copied.
    Source(Rectangle),
}

/// State of an RFB client.
pub(super) struct Rfb {
    next: NextMessage,
    /// Number of rectangles of the current update that have not arrived.
    rectangles: u16,
    /// Received bytes of the next item.
    input: Vec<u8>,
    output: Vec<u8>,
    frame: Option<Framebuffer>,
    budget: Budget,
    /// Whether an update has been requested and has not arrived.
    is_requested: bool,
    /// Whether the next request covers the whole display, because nothing was requested since the start or the last
    /// change of size.
    is_new: bool,
    /// Keysyms of the keys that are held down, by the codes of the keys.
    held: BTreeMap<String, u32>,
    /// Pointer buttons that are held down.
    buttons: u8,
}

impl Rfb {
    /// Returns a client that has not received anything.
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            next: NextMessage::Version,
            rectangles: 0,
            input: Vec::new(),
            output: Vec::new(),
            frame: None,
            budget,
            is_requested: false,
            is_new: true,
            held: BTreeMap::new(),
            buttons: 0,
        }
    }

    /// Starts over for a new connection. The shown content stays until the first new content.
    pub(super) fn restart(&mut self) {
        let frame = self.frame.take();
        *self = Self {
            frame,
            ..Self::new(self.budget.clone())
        };
    }

    /// Returns the content of the display; `None` if its size is not known yet.
    pub(super) fn frame(&mut self) -> Option<&mut Framebuffer> {
        self.frame.as_mut()
    }

    /// Returns the width and height in pixels, if they are known.
    pub(super) fn size(&self) -> Option<(u16, u16)> {
        self.frame.as_ref().map(|frame| (frame.width, frame.height))
    }

    /// Takes the bytes that wait to be sent to the guest.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Processes bytes of the guest.
    ///
    /// # Errors
    /// If the bytes violate the protocol, or the display is too large. The client cannot be used after an error.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), RfbError> {
        loop {
            let length = self.length();
            let missing = length.saturating_sub(self.input.len()).min(bytes.len());
            let (taken, rest) = bytes.split_at(missing);
            bytes = rest;
            if let NextMessage::Skip(left) = self.next {
                let left = left.saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX));
                self.next = if left == 0 {
                    NextMessage::Message
                } else {
                    NextMessage::Skip(left)
                };
                if left == 0 {
                    continue;
                }
                return Ok(());
            }
            self.input.extend_from_slice(taken);
            if self.input.len() < length {
                return Ok(());
            }
            let input = std::mem::take(&mut self.input);
            self.read(&input)?;
        }
    }

    /// Returns the length of the next item in bytes.
    fn length(&self) -> usize {
        match self.next {
            NextMessage::Version | NextMessage::Rectangle => 12,
            NextMessage::SecurityCount | NextMessage::Message => 1,
            NextMessage::SecurityTypes(count) => count.into(),
            NextMessage::SecurityResult | NextMessage::ReasonLength | NextMessage::Source(_) => 4,
            NextMessage::Reason(length) | NextMessage::Skip(length) => usize::try_from(length).unwrap_or(usize::MAX),
            NextMessage::Start => 24,
            NextMessage::UpdateCount => 3,
            NextMessage::Colours => 5,
            NextMessage::CutText => 7,
            NextMessage::Row(part, _) => usize::from(part.width) * PIXEL,
        }
    }

    fn read(&mut self, input: &[u8]) -> Result<(), RfbError> {
        self.next = match self.next {
            NextMessage::Version => {
                if input != VERSION {
                    return Err(RfbError::Version(String::from_utf8_lossy(input).trim_end().to_owned()));
                }
                self.output.extend(VERSION);
                NextMessage::SecurityCount
            }
            NextMessage::SecurityCount if input == [0] => NextMessage::ReasonLength,
            NextMessage::SecurityCount => NextMessage::SecurityTypes(input[0]),
            NextMessage::SecurityTypes(_) => {
                if !input.contains(&NONE) {
                    return Err(RfbError::Security(input.to_vec()));
                }
                self.output.push(NONE);
                NextMessage::SecurityResult
            }
            NextMessage::SecurityResult if long(input, 0) != 0 => NextMessage::ReasonLength,
            NextMessage::SecurityResult => {
                // Shared mode: other clients may stay connected.
                self.output.push(1);
                NextMessage::Start
            }
            NextMessage::ReasonLength => NextMessage::Reason(long(input, 0).min(LONGEST_REASON)),
            NextMessage::Reason(_) => return Err(RfbError::Refused(String::from_utf8_lossy(input).into_owned())),
            NextMessage::Start => {
                self.resize(short(input, 0), short(input, 2))?;
                self.begin();
                skip(long(input, 20))
            }
            NextMessage::Message => match input[0] {
                0 => NextMessage::UpdateCount,
                1 => NextMessage::Colours,
                2 => NextMessage::Message,
                3 => NextMessage::CutText,
                kind => return Err(RfbError::Message(kind)),
            },
            NextMessage::UpdateCount => {
                self.rectangles = short(input, 1);
                self.next_rectangle()
            }
            NextMessage::Colours => skip(u32::from(short(input, 3)) * 6),
            NextMessage::CutText => skip(long(input, 3)),
            NextMessage::Rectangle => self.rectangle(input)?,
            NextMessage::Row(part, row) => {
                if let Some(frame) = &mut self.frame {
                    frame.set_row(part, row, input);
                }
                if row + 1 < part.height {
                    NextMessage::Row(part, row + 1)
                } else {
                    if let Some(frame) = &mut self.frame {
                        frame.change(part);
                    }
                    self.next_rectangle()
                }
            }
            NextMessage::Source(part) => {
                let (x, y) = (short(input, 0), short(input, 2));
                let source = Rectangle { x, y, ..part };
                match &mut self.frame {
                    Some(frame) if frame.has(source) => frame.copy(x, y, part),
                    _ => return Err(RfbError::Outside(source)),
                }
                self.next_rectangle()
            }
            NextMessage::Skip(length) => NextMessage::Skip(length),
        };
        Ok(())
    }

    /// Processes the header of a rectangle.
    fn rectangle(&mut self, input: &[u8]) -> Result<NextMessage, RfbError> {
        self.rectangles = self.rectangles.saturating_sub(1);
        let part = Rectangle {
            x: short(input, 0),
            y: short(input, 2),
            width: short(input, 4),
            height: short(input, 6),
        };
        let encoding = long(input, 8).cast_signed();
        if encoding == DESKTOP_SIZE {
            self.resize(part.width, part.height)?;
            self.is_new = true;
            return Ok(self.next_rectangle());
        }
        if !self.frame.as_ref().is_some_and(|frame| frame.has(part)) {
            return Err(RfbError::Outside(part));
        }
        match encoding {
            COPY => Ok(NextMessage::Source(part)),
            RAW if part.width == 0 || part.height == 0 => Ok(self.next_rectangle()),
            RAW => Ok(NextMessage::Row(part, 0)),
            other => Err(RfbError::Encoding(other)),
        }
    }

    fn next_rectangle(&mut self) -> NextMessage {
        if self.rectangles > 0 {
            return NextMessage::Rectangle;
        }
        self.is_requested = false;
        NextMessage::Message
    }

    fn resize(&mut self, width: u16, height: u16) -> Result<(), RfbError> {
        // The old display is dropped first, so that its memory is available for the new one.
        self.frame = None;
        self.frame = Some(Framebuffer::new(width, height, &self.budget).map_err(RfbError::Size)?);
        Ok(())
    }

    /// Sends the pixel format and the supported encodings.
    fn begin(&mut self) {
        // 32 bits per pixel with a depth of 24, true colour, little-endian, and 8 bits for each colour. Red is the
        // first byte.
        let format = [32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0];
        self.output.extend([0, 0, 0, 0]);
        self.output.extend(format);
        self.output.extend([2, 0, 0, 3]);
        for encoding in [COPY, RAW, DESKTOP_SIZE] {
            self.output.extend(encoding.to_be_bytes());
        }
    }

    /// Requests the next update if the last one has arrived and the browser has received it.
    pub(super) fn request(&mut self) {
        let Some(frame) = &self.frame else { return };
        let is_ready = self.next == NextMessage::Message && !self.is_requested;
        if !is_ready || (frame.has_changed() && !self.is_new) {
            return;
        }
        self.output.extend([3, u8::from(!self.is_new), 0, 0, 0, 0]);
        self.output.extend(frame.width.to_be_bytes());
        self.output.extend(frame.height.to_be_bytes());
        self.is_requested = true;
        self.is_new = false;
    }

    /// Returns whether the handshake is over, so that the guest accepts input, and the waiting output is below its
    /// limit.
    fn takes_input(&self) -> bool {
        let has_begun = self.frame.is_some()
            && !matches!(
                self.next,
                NextMessage::Version
                    | NextMessage::SecurityCount
                    | NextMessage::SecurityTypes(_)
                    | NextMessage::SecurityResult
                    | NextMessage::Start
            );
        has_begun && self.output.len() < MOST_OUTPUT
    }

    /// Presses or releases a key. A release refers to the key at the same physical position, even if that key has
    /// another meaning in the meantime.
    pub(super) fn key(&mut self, key: &KeyPress) {
        let held = if key.down { None } else { self.held.remove(&key.code) };
        let Some(keysym) = held.or_else(|| keys::keysym(key)) else {
            return;
        };
        if !key.down {
            return self.press(keysym, false);
        }
        let held: Vec<u32> = self.held.values().copied().collect();
        for (keysym, down) in keys::pressed(keysym, &held) {
            self.press(keysym, down);
        }
        self.held.insert(key.code.clone(), keysym);
    }

    /// Presses keys in their order, and releases them in reverse order.
    pub(super) fn chord(&mut self, keysyms: &[u32]) {
        keysyms.iter().for_each(|keysym| self.press(*keysym, true));
        keysyms.iter().rev().for_each(|keysym| self.press(*keysym, false));
    }

    /// Types a text.
    pub(super) fn text(&mut self, text: &str) {
        for (keysym, down) in keys::typed(text) {
            self.press(keysym, down);
        }
    }

    /// Releases all keys that are held down. The browser does not see their release after the guest has lost the focus.
    pub(super) fn release(&mut self) {
        for keysym in std::mem::take(&mut self.held).into_values() {
            self.press(keysym, false);
        }
    }

    fn press(&mut self, keysym: u32, down: bool) {
        if self.takes_input() {
            self.output.extend([4, u8::from(down), 0, 0]);
            self.output.extend(keysym.to_be_bytes());
        }
    }

    /// Moves the pointer. `buttons` is encoded as in `MouseEvent.buttons` of browsers.
    pub(super) fn pointer(&mut self, x: u16, y: u16, buttons: u8) {
        // In browsers the right button comes before the middle one. In RFB it comes after.
        let swapped = (buttons & 1) | (buttons & 2) << 1 | (buttons & 4) >> 1;
        self.buttons = swapped;
        self.point(x, y, swapped);
    }

    /// Turns the wheel by one step, up or down. RFB encodes the wheel as two further buttons.
    pub(super) fn wheel(&mut self, x: u16, y: u16, up: bool) {
        let wheel = if up { 1 << 3 } else { 1 << 4 };
        self.point(x, y, self.buttons | wheel);
        self.point(x, y, self.buttons);
    }

    fn point(&mut self, x: u16, y: u16, buttons: u8) {
        let Some((width, height)) = self.size().filter(|_| self.takes_input()) else {
            return;
        };
        self.output.extend([5, buttons]);
        self.output.extend(x.min(width - 1).to_be_bytes());
        self.output.extend(y.min(height - 1).to_be_bytes());
    }
}

/// Returns the state that skips bytes before the next message.
fn skip(length: u32) -> NextMessage {
    if length == 0 {
        NextMessage::Message
    } else {
        NextMessage::Skip(length)
    }
}

/// Reads a 16-bit number. Each item is as long as [`Rfb::length`] returns, so the bytes are present.
fn short(input: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([input[at], input[at + 1]])
}

/// Reads a 32-bit number.
fn long(input: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the bytes of a server up to the end of the handshake.
    fn handshake(width: u16, height: u16) -> Vec<u8> {
        let mut bytes = b"RFB 003.008\n\x02\x02\x01\0\0\0\0".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([0; 16]);
        bytes.extend(4_u32.to_be_bytes());
        bytes.extend(b"QEMU");
        bytes
    }

    fn rectangle(part: Rectangle, encoding: i32, rest: &[u8]) -> Vec<u8> {
        let numbers = [part.x, part.y, part.width, part.height];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        bytes.extend(encoding.to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn update(rectangles: &[Vec<u8>]) -> Vec<u8> {
        let count = u16::try_from(rectangles.len()).unwrap().to_be_bytes();
        [&[0, 0, count[0], count[1]][..], &rectangles.concat()].concat()
    }

    fn part(x: u16, y: u16, width: u16, height: u16) -> Rectangle {
        Rectangle { x, y, width, height }
    }

    /// Returns a client that is connected to a display of 4 by 2 pixels and has sent its first messages.
    fn connected() -> Rfb {
        let mut rfb = Rfb::new(Budget::default());
        rfb.feed(&handshake(4, 2)).unwrap();
        rfb.take_output();
        rfb
    }

    #[test]
    fn handshake_ends_with_a_request_for_everything() {
        let mut rfb = Rfb::new(Budget::default());
        rfb.feed(&handshake(4, 2)).unwrap();
        rfb.request();
        let output = rfb.take_output();
        let (first, rest) = output.split_at(14);
        assert_eq!(first, b"RFB 003.008\n\x01\x01");
        assert_eq!((rest.len(), rest[0], rest[20]), (20 + 16 + 10, 0, 2));
        assert_eq!(rest[36..], [3, 0, 0, 0, 0, 0, 0, 4, 0, 2]);
        // The update has not arrived.
        rfb.request();
        assert!(rfb.take_output().is_empty());
        let pixels = [9; 4 * 2 * PIXEL];
        rfb.feed(&update(&[rectangle(part(0, 0, 4, 2), RAW, &pixels)])).unwrap();
        // The browser has not received the update.
        rfb.request();
        assert!(rfb.take_output().is_empty());
        assert_eq!(rfb.frame().unwrap().take()[8..16], [9, 9, 9, 255, 9, 9, 9, 255]);
        rfb.request();
        assert_eq!(rfb.take_output(), [3, 1, 0, 0, 0, 0, 0, 4, 0, 2]);
    }

    #[test]
    fn resized_display_is_requested_anew() {
        let mut rfb = connected();
        rfb.request();
        rfb.take_output();
        rfb.feed(&update(&[rectangle(part(0, 0, 8, 6), DESKTOP_SIZE, &[])]))
            .unwrap();
        assert_eq!(rfb.size(), Some((8, 6)));
        rfb.request();
        assert_eq!(rfb.take_output(), [3, 0, 0, 0, 0, 0, 0, 8, 0, 6]);
    }

    #[test]
    fn unsupported_rfb_features_are_refused_by_name() {
        let refused = |bytes: &[u8]| Rfb::new(Budget::default()).feed(bytes).unwrap_err().to_string();
        assert!(refused(b"RFB 003.003\n").contains("\"RFB 003.003\""));
        assert!(refused(b"RFB 003.008\n\x02\x02\x13").contains("[2, 19]"));
        assert!(refused(b"RFB 003.008\n\0\0\0\0\x04full").ends_with("refuses the connection: full"));
        assert!(refused(b"RFB 003.008\n\x01\x01\0\0\0\x01\0\0\0\x02no").ends_with("refuses the connection: no"));
        assert!(refused(&handshake(9000, 9000)).contains("9000 x 9000"));
        let refused = |bytes: &[u8]| connected().feed(bytes).unwrap_err().to_string();
        assert!(refused(&[7]).contains("message 7"));
        assert!(refused(&update(&[rectangle(part(0, 0, 4, 2), 16, &[])])).contains("encoding 16"));
        assert!(refused(&update(&[rectangle(part(1, 0, 4, 2), RAW, &[])])).contains("4 x 2 at 1, 0"));
        assert!(refused(&update(&[rectangle(part(0, 0, 1, 1), COPY, &[0, 4, 0, 0])])).contains("1 x 1 at 4, 0"));
        assert!(refused(&update(&[rectangle(part(0, 0, 0, 5), DESKTOP_SIZE, &[])])).contains("0 x 5"));
    }

    #[test]
    fn input_is_events_and_held_keys_are_released() {
        let mut rfb = connected();
        let key = |key: &str, code: &str, down| KeyPress {
            key: key.into(),
            code: code.into(),
            down,
            ..KeyPress::default()
        };
        rfb.key(&key("Shift", "ShiftLeft", true));
        rfb.key(&key("A", "KeyA", true));
        rfb.key(&key("Shift", "ShiftLeft", false));
        // Shift has been released, so the key has another meaning now.
        rfb.key(&key("a", "KeyA", false));
        let keys = |output: Vec<u8>| {
            output
                .chunks(8)
                .map(|event| (event[1], long(event, 4)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            keys(rfb.take_output()),
            [(1, 0xffe1), (1, 0x41), (0, 0xffe1), (0, 0x41)]
        );
        rfb.key(&key("Alt", "AltLeft", true));
        rfb.release();
        rfb.release();
        assert_eq!(keys(rfb.take_output()), [(1, 0xffe9), (0, 0xffe9)]);
        rfb.chord(&keys::CTRL_ALT_DELETE);
        let events = [
            (1, 0xffe3),
            (1, 0xffe9),
            (1, 0xffff),
            (0, 0xffff),
            (0, 0xffe9),
            (0, 0xffe3),
        ];
        assert_eq!(keys(rfb.take_output()), events);
        rfb.pointer(900, 1, 2);
        rfb.wheel(0, 0, true);
        assert_eq!(
            rfb.take_output(),
            [5, 4, 0, 3, 0, 1, 5, 12, 0, 0, 0, 0, 5, 4, 0, 0, 0, 0]
        );
        // The output for a guest that does not read is limited.
        rfb.text(&"x".repeat(1 << 20));
        assert!(rfb.take_output().len() < MOST_OUTPUT + 16);
        let mut early = Rfb::new(Budget::default());
        early.text("early");
        assert!(early.take_output().is_empty());
    }

    /// Returns a message of a server for a display of 4 by 2 pixels.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let raw = (0..4_u16, 0..2_u16, 1..=4_u16, 1..=2_u16, any::<u8>()).prop_map(|(x, y, width, height, byte)| {
            let part = part(x, y, width.min(4 - x), height.min(2 - y));
            let size = usize::from(part.width) * usize::from(part.height) * PIXEL;
            rectangle(part, RAW, &vec![byte; size])
        });
        let copy = (0..4_u8, 0..2_u8).prop_map(|(x, y)| rectangle(part(1, 1, 1, 1), COPY, &[0, x, 0, y]));
        let empty = Just(rectangle(part(4, 2, 0, 0), RAW, &[]));
        let update = prop::collection::vec(prop_oneof![raw, copy, empty], 0..4).prop_map(|parts| update(&parts));
        let text = prop::collection::vec(any::<u8>(), 0..20).prop_map(|text| {
            let length = u32::try_from(text.len()).unwrap().to_be_bytes();
            [&[3, 0, 0, 0][..], &length, &text].concat()
        });
        prop_oneof![
            update,
            text,
            Just(vec![2]),
            Just([&[1, 0, 0, 0, 0, 2][..], &[0; 12]].concat())
        ]
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_gives_the_same_display(
            messages in prop::collection::vec(message(), 0..6), piece in 1_usize..40
        ) {
            let bytes = [handshake(4, 2), messages.concat()].concat();
            let (mut whole, mut split) = (Rfb::new(Budget::default()), Rfb::new(Budget::default()));
            whole.feed(&bytes).unwrap();
            for piece in bytes.chunks(piece) {
                split.feed(piece).unwrap();
            }
            prop_assert_eq!((whole.next, split.next), (NextMessage::Message, NextMessage::Message));
            prop_assert_eq!(whole.take_output(), split.take_output());
            prop_assert_eq!(whole.frame().unwrap().take(), split.frame().unwrap().take());
        }

        #[test]
        fn any_bytes_give_a_display_or_an_error(
            start in prop::bool::ANY, messages in prop::collection::vec(message(), 0..3),
            noise in prop::collection::vec(any::<u8>(), 0..200), piece in 1_usize..40
        ) {
            let mut bytes = if start { [handshake(4, 2), messages.concat()].concat() } else { Vec::new() };
            bytes.extend(noise);
            let mut rfb = Rfb::new(Budget::default());
            for piece in bytes.chunks(piece) {
                if rfb.feed(piece).is_err() {
                    break;
                }
            }
            rfb.request();
            prop_assert!(rfb.input.len() <= bytes.len());
        }
    }
}
