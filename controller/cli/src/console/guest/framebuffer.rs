//! The pixels of a display, and the changes that the browser has not received yet.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes of a pixel: red, green, blue and an opacity for the browser's canvas, which is always full.
pub(super) const PIXEL: usize = 4;
/// Maximum size of a display in pixels, as width and height in either order. Such a display needs 16 MiB.
pub(super) const LARGEST: (u16, u16) = (2560, 1600);
/// Memory for all open displays in bytes: two of the maximum size, or ten of 1024 by 768. The console has 80 MiB in
/// total.
const BUDGET: usize = 32 << 20;
/// Side length of a tile in pixels. Changes are recorded for each tile.
const TILE: usize = 64;
/// Size of a portion in bytes from which no further rectangle is added.
const PORTION: usize = 1 << 20;

/// Memory that is still available for displays. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(BUDGET)))
    }
}

/// A part of a display in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub(super) x: u16,
    pub(super) y: u16,
    pub(super) width: u16,
    pub(super) height: u16,
}

/// The pixels of a display.
#[derive(Debug)]
pub(super) struct Framebuffer {
    pub(super) width: u16,
    pub(super) height: u16,
    pixels: Vec<u8>,
    /// Whether each tile has changed since it was taken, row by row.
    changed: Vec<bool>,
    budget: Budget,
}

impl Framebuffer {
    /// Returns a black display of this size that is completely marked as changed.
    ///
    /// # Errors
    /// If the size is not allowed, or the memory is used up by other displays. The error is human-readable.
    pub(super) fn new(width: u16, height: u16, budget: &Budget) -> Result<Self, String> {
        let size = usize::from(width) * usize::from(height) * PIXEL;
        if size == 0 || size > usize::from(LARGEST.0) * usize::from(LARGEST.1) * PIXEL {
            return Err(format!(
                "the display's size {width} x {height} is not allowed; allowed: from 1 x 1 to as many pixels as {} x {}",
                LARGEST.0, LARGEST.1
            ));
        }
        let left = |left: usize| left.checked_sub(size);
        if budget
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, left)
            .is_err()
        {
            return Err(format!(
                "the open displays leave no memory for {width} x {height} pixels: close one of them"
            ));
        }
        let mut pixels = vec![0; size];
        pixels
            .chunks_exact_mut(PIXEL)
            .for_each(|pixel| pixel[PIXEL - 1] = u8::MAX);
        let tiles = usize::from(width).div_ceil(TILE) * usize::from(height).div_ceil(TILE);
        Ok(Self {
            width,
            height,
            pixels,
            changed: vec![true; tiles],
            budget: budget.clone(),
        })
    }

    /// Returns whether a rectangle is within the display.
    pub(super) fn has(&self, part: Rectangle) -> bool {
        let fits = |from: u16, length: u16, whole: u16| u32::from(from) + u32::from(length) <= u32::from(whole);
        fits(part.x, part.width, self.width) && fits(part.y, part.height, self.height)
    }

    /// Sets the pixels of one row of a rectangle, which has to be within the display. The fourth byte of each pixel is
    /// ignored.
    pub(super) fn set_row(&mut self, part: Rectangle, row: u16, pixels: &[u8]) {
        let start = self.offset(part.x, part.y.saturating_add(row));
        let Some(target) = self.pixels.get_mut(start..start + pixels.len()) else {
            return;
        };
        for (target, pixel) in target.chunks_exact_mut(PIXEL).zip(pixels.chunks_exact(PIXEL)) {
            target[..PIXEL - 1].copy_from_slice(&pixel[..PIXEL - 1]);
        }
    }

    /// Copies the pixels at a position to a rectangle. Both areas have to be within the display, and may overlap.
    pub(super) fn copy(&mut self, x: u16, y: u16, part: Rectangle) {
        let length = usize::from(part.width) * PIXEL;
        let mut rows: Vec<u16> = (0..part.height).collect();
        if y < part.y {
            rows.reverse();
        }
        for row in rows {
            let (from, to) = (self.offset(x, y + row), self.offset(part.x, part.y + row));
            self.pixels.copy_within(from..from + length, to);
        }
        self.change(part);
    }

    /// Marks a rectangle as changed.
    pub(super) fn change(&mut self, part: Rectangle) {
        let tiles = |from: u16, length: u16| {
            let end = usize::from(from) + usize::from(length);
            usize::from(from) / TILE..end.div_ceil(TILE)
        };
        let columns = usize::from(self.width).div_ceil(TILE);
        for row in tiles(part.y, part.height) {
            for column in tiles(part.x, part.width) {
                if let Some(changed) = self.changed.get_mut(row * columns + column) {
                    *changed = true;
                }
            }
        }
    }

    /// Returns whether there are changes that the browser has not received.
    pub(super) fn has_changed(&self) -> bool {
        self.changed.contains(&true)
    }

    /// Takes a portion of the changes as a list of rectangles. Each has left, top, width and height as 16-bit numbers
    /// in big-endian order, followed by its pixels row by row.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let columns = usize::from(self.width).div_ceil(TILE);
        let mut taken = Vec::new();
        let mut tile = 0;
        while tile < self.changed.len() && taken.len() < PORTION {
            let (row, column) = (tile / columns, tile % columns);
            let rest = &mut self.changed[tile..(row + 1) * columns];
            // Changed tiles next to each other become one rectangle.
            let run = rest.iter().take_while(|changed| **changed).count();
            rest[..run].fill(false);
            if run > 0 {
                self.append(&mut taken, column * TILE, row * TILE, run * TILE);
            }
            tile += run.max(1);
        }
        taken
    }

    fn append(&self, taken: &mut Vec<u8>, left: usize, top: usize, width: usize) {
        let width = width.min(usize::from(self.width) - left);
        let height = TILE.min(usize::from(self.height) - top);
        for number in [left, top, width, height] {
            // The numbers are at most the width or the height, which have 16 bits.
            taken.extend(u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes());
        }
        for row in top..top + height {
            let start = (row * usize::from(self.width) + left) * PIXEL;
            taken.extend_from_slice(&self.pixels[start..start + width * PIXEL]);
        }
    }

    fn offset(&self, x: u16, y: u16) -> usize {
        (usize::from(y) * usize::from(self.width) + usize::from(x)) * PIXEL
    }
}

impl Drop for Framebuffer {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.pixels.len(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(x: u16, y: u16, width: u16, height: u16) -> Rectangle {
        Rectangle { x, y, width, height }
    }

    /// Returns the rectangles of a portion.
    fn rectangles(mut taken: &[u8]) -> Vec<Rectangle> {
        let mut found = Vec::new();
        while !taken.is_empty() {
            let number = |at: usize| u16::from_be_bytes([taken[at], taken[at + 1]]);
            let rectangle = part(number(0), number(2), number(4), number(6));
            found.push(rectangle);
            taken = &taken[8 + usize::from(rectangle.width) * usize::from(rectangle.height) * PIXEL..];
        }
        found
    }

    #[test]
    fn changed_framebuffer_tiles_are_taken_once() {
        let mut frame = Framebuffer::new(200, 100, &Budget::default()).unwrap();
        assert_eq!(rectangles(&frame.take()), [part(0, 0, 200, 64), part(0, 64, 200, 36)]);
        assert!(!frame.has_changed() && frame.take().is_empty());
        frame.set_row(part(130, 70, 1, 1), 0, &[1, 2, 3, 0]);
        frame.change(part(130, 70, 1, 1));
        let taken = frame.take();
        assert_eq!(rectangles(&taken), [part(128, 64, 64, 36)]);
        let at = 8 + (6 * 64 + 2) * PIXEL;
        assert_eq!(taken[at..at + PIXEL], [1, 2, 3, 255]);
        frame.copy(130, 70, part(0, 0, 1, 1));
        let taken = frame.take();
        assert_eq!(
            (rectangles(&taken), &taken[8..12]),
            (vec![part(0, 0, 64, 64)], &[1, 2, 3, 255][..])
        );
    }

    #[test]
    fn overlapping_copy_keeps_the_picture() {
        let mut frame = Framebuffer::new(1, 4, &Budget::default()).unwrap();
        for row in 0..4_u16 {
            frame.set_row(part(0, 0, 1, 4), row, &[u8::try_from(row).unwrap(), 0, 0, 0]);
        }
        frame.copy(0, 0, part(0, 1, 1, 3));
        let reds = |frame: &Framebuffer| {
            frame
                .pixels
                .chunks_exact(PIXEL)
                .map(|pixel| pixel[0])
                .collect::<Vec<_>>()
        };
        assert_eq!(reds(&frame), [0, 0, 1, 2]);
        frame.copy(0, 1, part(0, 0, 1, 3));
        assert_eq!(reds(&frame), [0, 1, 2, 2]);
    }

    #[test]
    fn large_display_is_taken_in_portions() {
        let mut frame = Framebuffer::new(2560, 1600, &Budget::default()).unwrap();
        let (mut portions, mut pixels) = (0, 0);
        while frame.has_changed() {
            let taken = frame.take();
            assert!(taken.len() <= 2 * PORTION, "{}", taken.len());
            portions += 1;
            pixels += rectangles(&taken)
                .iter()
                .map(|part| usize::from(part.width) * usize::from(part.height))
                .sum::<usize>();
        }
        assert_eq!((portions, pixels), (13, 2560 * 1600));
    }

    #[test]
    fn size_beyond_the_limits_is_refused() {
        let budget = Budget::default();
        for (width, height) in [(0, 1), (1, 0), (2561, 1600), (65535, 65535)] {
            let why = Framebuffer::new(width, height, &budget).unwrap_err();
            assert!(
                why.contains(&format!("{width} x {height}")) && why.contains("2560 x 1600"),
                "{why}"
            );
        }
        let first = Framebuffer::new(2560, 1600, &budget).unwrap();
        let _second = Framebuffer::new(1600, 2560, &budget).unwrap();
        let why = Framebuffer::new(1024, 768, &budget).unwrap_err();
        assert!(why.contains("close one"), "{why}");
        drop(first);
        assert!(Framebuffer::new(1024, 768, &budget).is_ok());
    }
}
