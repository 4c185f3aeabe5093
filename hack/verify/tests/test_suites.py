"""The order of suites."""

import unittest

from verify.__main__ import SUITES, grouped


class Grouped(unittest.TestCase):
    def test_rust_and_embedded_run_side_by_side(self) -> None:
        self.assertEqual(grouped(list(SUITES)), [["style"], ["python"], ["rust", "embedded"], ["cluster"]])
        self.assertEqual(grouped(["embedded", "rust"]), [["embedded", "rust"]])

    def test_what_is_named_runs_in_that_order(self) -> None:
        self.assertEqual(grouped(["cluster", "rust", "style"]), [["cluster"], ["rust"], ["style"]])


if __name__ == "__main__":
    unittest.main()
