"""Tests of the progress line for a drain."""

import unittest

from demonstration.drain import printed


class Printed(unittest.TestCase):
    def test_guests_and_pods_are_named_with_reasons(self) -> None:
        maintenance = {
            "status": {
                "phase": "Running",
                "drainProgress": 50,
                "pods": [
                    {"name": "virt-launcher-web-1", "reason": "EvictionDeferred"},
                    {"name": "guarded-1", "reason": "BlockedByBudget"},
                ],
            }
        }
        hypervisor = {"status": {"drain": {"remaining": [{"name": "web", "state": "Moving", "reason": "Migration"}]}}}
        self.assertEqual(
            printed(maintenance, hypervisor), "Running 50 %, web: Moving (Migration), pod guarded-1: BlockedByBudget"
        )
        self.assertEqual(printed({}, {}), "new 0 %")


if __name__ == "__main__":
    unittest.main()
