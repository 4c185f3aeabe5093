"""Tests of counting requests in the controller's metrics."""

import unittest

from measure.simulation import requests_in

METRICS = """\
# TYPE drydock_api_requests counter
drydock_api_requests_total{verb="patch",resource="pods/ephemeralcontainers",code="200"} 2140
drydock_api_requests_total{verb="create",resource="events",code="201"} 17
drydock_api_requests_total{verb="patch",resource="leases",code="200"} 90
drydock_api_requests_total{verb="watch",resource="pods",code="200"} 5
drydock_api_requests_elsewhere_total{verb="patch",resource="pods",code="200"} 8
"""


class Counted(unittest.TestCase):
    def test_neither_leases_nor_watches_are(self) -> None:
        self.assertEqual(requests_in(METRICS), 2157)
        self.assertEqual(requests_in(""), 0)
