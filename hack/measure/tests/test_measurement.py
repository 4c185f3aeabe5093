"""Tests of figures and their budgets."""

import json
import unittest

from measure.measurement import Measurement, median


class Measurements(unittest.TestCase):
    def test_a_budget_is_absolute_or_a_ratio(self) -> None:
        for figure, ratio, ok in (
            (Measurement("a", 9.0, "MiB", 28.0, 10), 0.321, True),
            (Measurement("a", 11.0, "MiB", None, 10), None, False),
            (Measurement("a", 6.0, "s", 5.0, 1.2, relative=True), 1.2, True),
            (Measurement("a", 6.1, "s", 5.0, 1.2, relative=True), 1.22, False),
            (Measurement("a", 6.1, "s", None, 1.2, relative=True), None, False),
            (Measurement("a", 0, "requests", None, 0), None, True),
        ):
            line = json.loads(figure.line())
            self.assertEqual((line["ratio"], line["ok"]), (ratio, ok), figure)

    def test_a_median_needs_eight_samples(self) -> None:
        self.assertEqual(median([7, 1, 2, 3, 4, 5, 6, 8]), 4.5)
        with self.assertRaises(AssertionError):
            median([1, 2, 3])


if __name__ == "__main__":
    unittest.main()
