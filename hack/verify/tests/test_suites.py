"""The order of suites."""

import argparse
import contextlib
import io
import threading
import unittest
from unittest import mock

from embedded.progress import Progress
from verify import runner
from verify.__main__ import SUITES, _run, grouped
from verify.outcome import Outcome


class Grouped(unittest.TestCase):
    def test_what_leaves_processors_idle_runs_side_by_side(self) -> None:
        self.assertEqual(grouped(list(SUITES)), [["style"], ["python"], ["rust", "embedded"], ["crates", "cluster"]])
        self.assertEqual(grouped(["embedded", "rust"]), [["embedded", "rust"]])

    def test_only_two_that_belong_together_share_a_group(self) -> None:
        self.assertEqual(grouped(["embedded", "cluster"]), [["embedded"], ["cluster"]])
        self.assertEqual(grouped(["crates", "cluster"]), [["crates", "cluster"]])

    def test_what_is_named_runs_in_that_order(self) -> None:
        self.assertEqual(grouped(["cluster", "rust", "style"]), [["cluster"], ["rust"], ["style"]])


class SideBySide(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        self.enterContext(mock.patch.object(runner, "_interrupted", threading.Event()))

    def test_outcomes_are_in_the_order_of_the_group(self) -> None:
        begun = threading.Event()

        def first(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            begun.set()
            return Outcome(passed=1)

        def last(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            self.assertTrue(begun.wait(60))
            return Outcome(passed=2)

        done = _run(["first", "last"], {"first": first, "last": last}, argparse.Namespace(), Progress())
        self.assertEqual([(outcome.name, outcome.passed) for outcome in done], [("first", 1), ("last", 2)])

    def test_an_interruption_of_the_last_ends_the_others(self) -> None:
        begun = threading.Event()

        def first(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            begun.set()
            while True:
                runner.run(["sleep", "0.1"], quiet=True)

        def last(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            self.assertTrue(begun.wait(60))
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            _run(["first", "last"], {"first": first, "last": last}, argparse.Namespace(), Progress())


if __name__ == "__main__":
    unittest.main()
