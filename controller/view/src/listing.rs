//! Tables that can be sorted by each of their columns.

use std::cmp::Ordering;

use crate::text::table;

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    key: SortKey,
}

/// Sort key of a cell. Cells without a value are last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    /// An amount. The greatest amount is first.
    Number(i128),
    /// A text, in alphabetical order.
    Text(String),
    None,
}

/// Error: the table has no such column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchColumn {
    /// Name of the requested column.
    pub name: String,
    /// Names of the columns of the table.
    pub allowed: String,
}

impl Cell {
    /// Returns a cell that is sorted by its text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        let key = SortKey::Text(text.clone());
        Self { text, key }
    }

    /// Returns a cell that is sorted by a number.
    pub(crate) fn number(number: impl Into<i128>, text: impl Into<String>) -> Self {
        Self {
            key: SortKey::Number(number.into()),
            text: text.into(),
        }
    }

    /// Returns an empty cell.
    pub(crate) fn none() -> Self {
        Self {
            text: "-".into(),
            key: SortKey::None,
        }
    }

    /// Returns a cell that is sorted by its text, or an empty cell.
    pub(crate) fn optional(text: Option<String>) -> Self {
        text.filter(|text| !text.is_empty()).map_or_else(Self::none, Self::text)
    }
}

impl Listing {
    pub(crate) fn new(columns: &[&'static str], rows: Vec<Vec<Cell>>) -> Self {
        Self {
            columns: columns.to_vec(),
            rows,
        }
    }

    /// Sorts the rows by a column. Amounts are sorted with the greatest first, texts alphabetically. The column's name
    /// is not case-sensitive.
    ///
    /// # Errors
    /// If the table has no such column.
    pub fn sort(&mut self, column: &str) -> Result<(), NoSuchColumn> {
        let mut columns = self.columns.iter();
        let Some(index) = columns.position(|name| name.eq_ignore_ascii_case(column)) else {
            return Err(NoSuchColumn {
                name: column.to_owned(),
                allowed: self.columns.join(", "),
            });
        };
        let order = |one: &Cell, other: &Cell| match (&one.key, &other.key) {
            (SortKey::Number(one), SortKey::Number(other)) => other.cmp(one),
            (one, other) => one.cmp(other),
        };
        self.rows.sort_by(|one, other| {
            let cells = one.get(index).zip(other.get(index));
            cells.map_or(Ordering::Equal, |(one, other)| order(one, other))
        });
        Ok(())
    }

    /// Returns the table as lines, with the heading first.
    pub fn lines(&self) -> Vec<String> {
        let heading = self.columns.iter().map(|&name| name.to_owned()).collect();
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| cell.text.clone()).collect());
        let all: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
        table(&all).lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_amount_or_text() {
        let rows = vec![
            vec![Cell::text("b"), Cell::number(9, "9 B")],
            vec![Cell::text("a"), Cell::none()],
            vec![Cell::text("c"), Cell::number(1024, "1 KiB")],
        ];
        let listing = Listing::new(&["NAME", "MEMORY"], rows);
        for (column, expected) in [
            ("memory", ["NAME  MEMORY", "c     1 KiB", "b     9 B", "a     -"]),
            ("NAME", ["NAME  MEMORY", "a     -", "b     9 B", "c     1 KiB"]),
        ] {
            let mut sorted = listing.clone();
            sorted.sort(column).unwrap();
            assert_eq!(sorted.lines(), expected);
        }
        let wrong = listing.clone().sort("age").unwrap_err();
        assert_eq!((wrong.name.as_str(), wrong.allowed.as_str()), ("age", "NAME, MEMORY"));
    }
}
