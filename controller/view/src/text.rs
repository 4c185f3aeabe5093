//! Text for terminals: columns, wrapped lines and amounts.

use std::fmt::Write as _;

/// Width in columns of output to other destinations than a terminal.
pub const WIDTH: usize = 80;

/// Returns an amount of bytes with a binary unit, to at most three digits: `512 B`, `1.5 GiB`, `96 MiB`.
pub fn bytes(amount: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if amount < 1024 {
        return format!("{amount} B");
    }
    let mut unit = 0;
    // The value is in thousandths of the unit. The product can exceed `u64`.
    let mut thousandths = u128::from(amount) * 1000 / 1024;
    while thousandths >= 1_000_000 && unit + 1 < UNITS.len() {
        thousandths /= 1024;
        unit += 1;
    }
    let (whole, tenth) = (thousandths / 1000, thousandths % 1000 / 100);
    if whole < 10 && tenth > 0 {
        format!("{whole}.{tenth} {}", UNITS[unit])
    } else {
        format!("{whole} {}", UNITS[unit])
    }
}

/// Returns a duration as text: `40 s`, `6 min`, `2 h`, `3 d`.
pub fn seconds(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// Wraps words at a width. All lines but the first start with `indent` spaces. A word that is longer than a line is not
/// split: names are never truncated.
pub fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width.saturating_sub(indent) {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

/// Appends a label and a message that begins at `column`. The message is on the line of the label, or below it if the
/// label is longer.
pub(crate) fn beside(text: &mut String, label: &str, message: &str, column: usize, width: usize) {
    let message = wrapped(message, width, column);
    // Writing to a string cannot fail.
    if label.chars().count() < column {
        let _ = writeln!(text, "{label:<column$}{message}");
    } else {
        let _ = writeln!(text, "{label}\n{:column$}{message}", "");
    }
}

/// Formats rows as columns that are aligned and separated by two spaces.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width + 2 - cell.chars().count()));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_a_unit_and_few_digits() {
        for (amount, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (96 << 20, "96 MiB"),
            (1 << 30, "1 GiB"),
            ((1 << 30) + (1 << 29), "1.5 GiB"),
            (1000 << 20, "0.9 GiB"),
            (12 << 30, "12 GiB"),
            (u64::MAX, "15 EiB"),
        ] {
            assert_eq!(bytes(amount), expected);
        }
        for (amount, expected) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7200, "2 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(seconds(amount), expected);
        }
    }

    #[test]
    fn lines_are_wrapped_at_spaces_only() {
        for (text, expected) in [
            ("", ""),
            ("one two three", "one two\n  three"),
            ("a-very-long-name of it", "a-very-long-name\n  of it"),
        ] {
            assert_eq!(wrapped(text, 10, 2), expected, "{text}");
        }
    }

    #[test]
    fn columns_are_aligned_without_spaces_at_the_end() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        assert_eq!(
            table(&[row(&["NAME", "STATE", "WHY"]), row(&["worker-1", "Open", ""])]),
            "NAME      STATE  WHY\nworker-1  Open\n"
        );
    }
}
