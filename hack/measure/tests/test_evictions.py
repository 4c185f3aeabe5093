"""How evictions are asked for and what is made of the answers."""

import json
import unittest

from measure.eviction_time import is_refused, percentile, review


def answer(allowed: bool, code: int) -> bytes:
    """As a webhook gives it."""
    return json.dumps({"response": {"allowed": allowed, "status": {"code": code}}}).encode()


class Evictions(unittest.TestCase):
    def test_only_a_plea_for_patience_is_a_refusal(self) -> None:
        self.assertTrue(is_refused(200, answer(False, 429)))
        self.assertFalse(is_refused(200, answer(True, 200)))
        self.assertFalse(is_refused(200, answer(False, 403)))
        self.assertFalse(is_refused(500, b"no"))

    def test_what_is_asked_changes_nothing(self) -> None:
        asked = review("virt-launcher-a")["request"]
        self.assertTrue(asked["dryRun"])
        self.assertEqual(asked["object"]["deleteOptions"], {"dryRun": ["All"]})
        self.assertEqual((asked["name"], asked["object"]["metadata"]["name"]), ("virt-launcher-a", "virt-launcher-a"))

    def test_percentiles(self) -> None:
        self.assertEqual(percentile([float(number) for number in range(1, 101)]), 99)
        self.assertEqual(percentile([3.0]), 3)
        self.assertEqual(percentile([2.0, 1.0], 0.5), 1)


if __name__ == "__main__":
    unittest.main()
