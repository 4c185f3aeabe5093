"""What is told without running anything."""

import unittest

from verify.style import missing_tests


class NamedTests(unittest.TestCase):
    def test_names_are_whole_or_cut_and_anything_else_is_no_name(self) -> None:
        known = {"a_guest_moves_home_again", "a_guest_that_is_paused_stays"}
        row = "| `a_guest_moves_home_again`, `a_guest_that_is_…`, `cpu_map`, `a_guest_moves_far_away`, `no_such_…` |"
        self.assertEqual(missing_tests(f"`not_in_a_table_at_all`\n{row}\n", known), ["a_guest_moves_far_away", "no_such"])


if __name__ == "__main__":
    unittest.main()
