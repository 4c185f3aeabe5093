//! Mutated lines for tests of parsers.

use proptest::prelude::*;

/// Generates a mutation of one of these lines: a piece of fewer than `longest` bytes is replaced by nothing, text or
/// `nested`.
pub(super) fn mutated_line(
    lines: Vec<&'static str>,
    nested: Just<String>,
    longest: usize,
) -> impl Strategy<Value = String> {
    let piece = prop_oneof![Just(String::new()), "[ -~]{0,8}", "\\PC{0,8}", nested];
    (
        prop::sample::select(lines),
        any::<prop::sample::Index>(),
        0..longest,
        piece,
        1usize..4,
    )
        .prop_map(|(line, at, length, piece, times)| {
            let start = line.floor_char_boundary(at.index(line.len()));
            let end = line.floor_char_boundary((start + length).min(line.len()));
            format!("{}{}{}", &line[..start], piece.repeat(times), &line[end..])
        })
}
