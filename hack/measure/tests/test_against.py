"""Tests of the comparison with the figures of an earlier commit."""

from __future__ import annotations

import signal
import subprocess
import sys
import unittest

from embedded.errors import Failure
from measure.against import compared
from measure.measurement import Measurement

# In place of `hack/bench`: runs the benchmark of an earlier commit.
PROGRAM = """
import os, sys
from pathlib import Path
from embedded import interruption
from measure.against import output_of

interruption.heed_termination()
output_of([sys.executable, "-c", sys.argv[1]], Path.cwd(), dict(os.environ))
"""
# In place of the earlier commit's benchmark.
BENCHMARK = """
import signal, sys
from embedded import interruption

interruption.heed_termination()
try:
    print("ready", file=sys.stderr, flush=True)
    signal.pause()
finally:
    print("cleaned up", file=sys.stderr, flush=True)
"""


class TestAgainst(unittest.TestCase):
    def test_figures_of_both_are_compared_by_name(self) -> None:
        now = [Measurement("wall", 3.0, "s", 10.0, 4.0, least=2.0), Measurement("new", 1, "s", None, None)]
        lines = ["building ...", '{"name": "wall", "value": 2.5}', '{"name": "old", "value": 7}']
        (figure,) = compared("abcdef0", lines, now)
        self.assertEqual(
            (figure.name, figure.value, figure.reference, figure.least, figure.ok),
            ("wall: beside abcdef0", 3.0, 2.5, 2.0, True),
        )

    def test_a_benchmark_without_figures_is_an_error(self) -> None:
        with self.assertRaisesRegex(Failure, "printed no figure"):
            list(compared("abcdef0", ["error: none"], []))

    def test_interrupted_comparison_awaits_the_earlier_clean_up(self) -> None:
        argv = [sys.executable, "-c", PROGRAM, BENCHMARK]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as comparison:
            assert comparison.stderr is not None
            self.assertEqual(comparison.stderr.readline(), "ready\n")
            comparison.send_signal(signal.SIGTERM)
            _, printed = comparison.communicate(timeout=60)
        self.assertIn("cleaned up", printed)
        self.assertEqual(comparison.returncode, -signal.SIGINT, printed)
