"""Tests of the eviction benchmark: requests, evaluation of responses, percentiles."""

import json
import unittest

from measure.eviction_time import is_refused, percentile, review


def response(allowed: bool, code: int) -> bytes:
    """Return the body of a webhook's response."""
    return json.dumps({"response": {"allowed": allowed, "status": {"code": code}}}).encode()


class Evictions(unittest.TestCase):
    def test_only_a_plea_for_patience_is_a_refusal(self) -> None:
        self.assertTrue(is_refused(200, response(False, 429)))
        self.assertFalse(is_refused(200, response(True, 200)))
        self.assertFalse(is_refused(200, response(False, 403)))
        self.assertFalse(is_refused(500, b"no"))

    def test_dry_run_changes_nothing(self) -> None:
        requested = review("virt-launcher-a")["request"]
        self.assertTrue(requested["dryRun"])
        self.assertEqual(requested["object"]["deleteOptions"], {"dryRun": ["All"]})
        self.assertEqual((requested["name"], requested["object"]["metadata"]["name"]), ("virt-launcher-a", "virt-launcher-a"))

    def test_percentiles(self) -> None:
        self.assertEqual(percentile([float(number) for number in range(1, 101)]), 99)
        self.assertEqual(percentile([3.0]), 3)
        self.assertEqual(percentile([2.0, 1.0], 0.5), 1)


if __name__ == "__main__":
    unittest.main()
