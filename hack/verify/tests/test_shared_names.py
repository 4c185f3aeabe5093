"""Names shared by several types or modules."""

import unittest

from verify.shared_names import shared_modules, shared_types, types


class SharedNames(unittest.TestCase):
    def test_types_are_found_outside_tests_and_without_associated_ones(self) -> None:
        text = """
pub struct Plain;
pub(crate) enum Within { A }
type Alias = u8;
    pub(super) trait Nested {
        type Item;
    }
// struct Comment;
#[cfg(test)]
mod tests {
    struct Fixture;
}
struct Last(u8);
"""
        self.assertEqual(types(text), ["Plain", "Within", "Alias", "Nested", "Last"])

    def test_type_of_two_files_is_found_with_both(self) -> None:
        sources = {"b.rs": "struct Plan;\nstruct Other;\n", "a.rs": "enum Plan {}\n"}
        self.assertEqual(shared_types(sources), ["Plan: a.rs, b.rs"])

    def test_module_of_three_files_is_found_unless_in_each_program(self) -> None:
        files = [f"{folder}/{name}.rs" for folder in "abc" for name in ("guest", "main")] + ["a/node.rs", "b/node.rs"]
        self.assertEqual(shared_modules(files), ["guest: a/guest.rs, b/guest.rs, c/guest.rs"])
