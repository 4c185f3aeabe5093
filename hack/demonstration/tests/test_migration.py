"""Tests of the progress line for a migration."""

import unittest

from demonstration.migration import progress


class Progress(unittest.TestCase):
    def test_only_known_facts_are_printed(self) -> None:
        target = {"node": "node2"}
        for status, text in (
            ({}, "new"),
            ({"phase": "Pending"}, "Pending"),
            ({"phase": "Scheduling", "target": {}}, "Scheduling"),
            ({"phase": "PreparingTarget", "target": target, "source": {"pod": "a"}}, "PreparingTarget, to node2"),
            (
                {"phase": "Running", "target": target, "source": {"progress": {"summary": "68 %, 31 MiB left"}}},
                "Running, to node2, 68 %, 31 MiB left",
            ),
            ({"phase": "Failed", "reason": "TargetRefused", "target": target}, "Failed, to node2, TargetRefused"),
        ):
            self.assertEqual(progress({"status": status}), text)
        self.assertEqual(progress({}), "new")


if __name__ == "__main__":
    unittest.main()
