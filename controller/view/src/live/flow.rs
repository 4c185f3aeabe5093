//! Wraps pieces of text into lines that are never wider than a terminal.

/// Splits a text into words.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns pieces in lines of at most `width` columns, `gap` spaces apart. The first line starts at column `first` and
/// does not include the columns before it. The other lines start with `indent` spaces. A piece that is wider than a
/// line continues on the next one.
pub(super) fn flow(pieces: &[String], gap: usize, first: usize, indent: usize, width: usize) -> Vec<String> {
    let width = width.max(1);
    let indent = if indent < width { indent } else { 0 };
    let mut lines = Vec::new();
    let (mut line, mut column, mut is_empty) = (String::new(), first, true);
    for piece in pieces {
        let mut rest: Vec<char> = piece.chars().collect();
        let space = if is_empty { 0 } else { gap };
        if !is_empty && column + space + rest.len() > width
            || is_empty && column > indent && column + rest.len() > width
        {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            column = indent;
        } else if !is_empty {
            line.push_str(&" ".repeat(gap));
            column += gap;
        }
        while column + rest.len() > width {
            let tail = rest.split_off(width.saturating_sub(column).min(rest.len()));
            line.extend(rest);
            rest = tail;
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            column = indent;
        }
        column += rest.len();
        line.extend(rest);
        is_empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_flow_into_lines_of_the_width() {
        for (text, first, expected) in [
            ("", 0, &[""][..]),
            ("one two", 0, &["one two"]),
            ("one two three", 0, &["one two", "  three"]),
            ("one two", 8, &["", "  one two"]),
            ("a-name-that-is-long it", 0, &["a-name-tha", "  t-is-lon", "  g it"]),
            ("x a-name-that-is-long", 0, &["x", "  a-name-t", "  hat-is-l", "  ong"]),
        ] {
            let lines = flow(&words(text), 1, first, 2, 10);
            assert_eq!(lines, expected, "{text}");
        }
    }

    #[test]
    fn no_width_is_too_small() {
        for width in 0..5 {
            let lines = flow(&words("some words"), 1, 0, 2, width);
            assert!(
                lines.iter().all(|line| line.chars().count() <= width.max(1)),
                "{lines:?}"
            );
            let text: String = lines
                .iter()
                .flat_map(|line| line.chars())
                .filter(|c| *c != ' ')
                .collect();
            assert_eq!(text, "somewords");
        }
    }
}
