"""How webhooks are told to let requests pass, and to be as before."""

import unittest

from measure.elsewhere import failure_policies, policy_patch


class Webhooks(unittest.TestCase):
    def test_policies_are_put_back_as_they_were(self) -> None:
        found = [
            {"metadata": {"name": "drydock"}, "webhooks": [{"failurePolicy": "Fail"}, {"failurePolicy": "Ignore"}]},
            {"metadata": {"name": "somebody"}, "webhooks": [{"failurePolicy": "Fail"}]},
        ]
        policies = failure_policies(found)
        self.assertEqual(policies, {"drydock": ["Fail", "Ignore"]})
        self.assertEqual(
            policy_patch(policies["drydock"]),
            [
                {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"},
                {"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"},
            ],
        )


if __name__ == "__main__":
    unittest.main()
