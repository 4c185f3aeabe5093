"""Tests of the patches that exclude a namespace from webhooks and restore their selectors."""

import unittest

from measure.other_nodes_memory import ELSEWHERE_NOT, selectors, selectors_patch


class Webhooks(unittest.TestCase):
    def test_selectors_are_put_back_unchanged(self) -> None:
        only = {"matchLabels": {"a": "b"}}
        before = selectors({"webhooks": [{"name": "one", "namespaceSelector": only}, {"name": "two"}]})
        self.assertEqual(before, [only, {}])
        self.assertEqual(
            selectors_patch(before),
            [
                {"op": "add", "path": "/webhooks/0/namespaceSelector", "value": only},
                {"op": "add", "path": "/webhooks/1/namespaceSelector", "value": {}},
            ],
        )
        self.assertEqual([step["value"] for step in selectors_patch([ELSEWHERE_NOT] * 2)], [ELSEWHERE_NOT] * 2)


if __name__ == "__main__":
    unittest.main()
