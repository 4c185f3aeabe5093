"""Comparison with the figures of an earlier commit."""

from __future__ import annotations

import unittest

from embedded.errors import Failure
from measure.against import compared
from measure.figure import Figure


class TestAgainst(unittest.TestCase):
    def test_figures_of_both_are_compared_by_name(self) -> None:
        now = [Figure("wall", 3.0, "s", 10.0, 4.0, least=2.0), Figure("new", 1, "s", None, None)]
        lines = ["building ...", '{"name": "wall", "value": 2.5}', '{"name": "old", "value": 7}']
        (figure,) = compared("abcdef0", lines, now)
        self.assertEqual(
            (figure.name, figure.value, figure.reference, figure.least, figure.ok),
            ("wall: beside abcdef0", 3.0, 2.5, 2.0, True),
        )

    def test_a_benchmark_without_figures_is_an_error(self) -> None:
        with self.assertRaisesRegex(Failure, "printed no figure"):
            list(compared("abcdef0", ["error: none"], []))
