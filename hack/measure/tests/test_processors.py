"""Tests of reading processor time from /proc."""

import os
import unittest

from measure.processors import TICKS, Spent, busy, process

STAT = "cpu  100 20 300 9000 50 6 7 0 80 0\ncpu0 50 10 150 4500 25 3 3 0 40 0\n"
PROCESS = "4711 (drydock-(agent)) S 1 2 3 0 -1 4194560 1 0 0 0 {} {} 9 9 20 0 5 0 12345 1 1\n"


class Processors(unittest.TestCase):
    def test_idle_and_waiting_are_not_busy(self) -> None:
        self.assertEqual(busy(STAT), (100 + 20 + 300 + 6 + 7) / TICKS)

    def test_name_may_have_parentheses(self) -> None:
        self.assertEqual(process(PROCESS.format(30, 12)), ("drydock-(agent)", "12345", 42 / TICKS))

    def test_own_work_is_not_that_of_others(self) -> None:
        before = Spent(100, {"1 5": 10, "2 5": 3})
        after = Spent(120, {"1 5": 14, "3 9": 2})
        self.assertEqual(after.others_since(before), (20 - 4 - 2) / (os.cpu_count() or 1))

    def test_this_process_spends_something(self) -> None:
        before = Spent.so_far()
        sum(range(3_000_000))
        self.assertGreater(Spent.so_far().busy, before.busy)


if __name__ == "__main__":
    unittest.main()
