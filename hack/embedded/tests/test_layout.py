"""Tests names, paths and address ranges."""

from __future__ import annotations

import ipaddress
import unittest
from pathlib import Path

from embedded.errors import Failure
from embedded.layout import INDEXES, MAX_NODES, Layout, Settings
from embedded.layout import check_name, choose_index, node_name


class ChoosingAnIndex(unittest.TestCase):
    def test_first_on_an_empty_machine(self) -> None:
        self.assertEqual(choose_index([], []), 0)

    def test_skips_indexes_of_clusters(self) -> None:
        self.assertEqual(choose_index([0, 1, 3], []), 2)

    def test_a_default_route_covers_nothing(self) -> None:
        self.assertEqual(choose_index([], ["0.0.0.0/0"]), 0)

    def test_skips_ranges_that_the_host_routes_elsewhere(self) -> None:
        self.assertEqual(choose_index([], ["10.89.0.0/24"]), 1)
        self.assertEqual(choose_index([], ["10.128.7.0/24"]), 1)
        self.assertEqual(choose_index([], ["10.89.0.7", "10.89.1.0/24", "10.130.0.1"]), 3)

    def test_full_layout_is_an_error(self) -> None:
        with self.assertRaises(Failure):
            choose_index(INDEXES, [])
        with self.assertRaises(Failure):
            choose_index([], ["10.0.0.0/8"])


class Ranges(unittest.TestCase):
    def test_no_two_clusters_overlap(self) -> None:
        ranges = []
        for index in INDEXES:
            layout = Layout("a", Settings(index), Path("/state"))
            ranges += [ipaddress.ip_network(layout.node_range)]
            ranges += [ipaddress.ip_network(layout.pod_range)]
        for position, one in enumerate(ranges):
            for other in ranges[position + 1 :]:
                self.assertFalse(one.overlaps(other), f"{one} {other}")

    def test_nodes_are_inside_the_cluster_folder(self) -> None:
        layout = Layout("a", Settings(5, nodes=MAX_NODES), Path("/state"))
        pods = ipaddress.ip_network(layout.pod_range)
        for node in layout.nodes:
            self.assertIn(ipaddress.ip_address(node.address), ipaddress.ip_network(layout.node_range))
            self.assertTrue(ipaddress.ip_network(node.pod_range).subnet_of(pods))
        self.assertEqual(len({node.pod_range for node in layout.nodes}), MAX_NODES)

    def test_interface_names_fit_the_kernel(self) -> None:
        layout = Layout("a", Settings(INDEXES[-1], nodes=MAX_NODES), Path("/state"))
        for name in [layout.bridge, *(node.interface for node in layout.nodes)]:
            self.assertLessEqual(len(name), 15, name)


class Names(unittest.TestCase):
    def test_nodes_of_the_default_cluster_are_plain(self) -> None:
        self.assertEqual(node_name("drydock", 1), "node1")
        self.assertEqual(node_name("other", 2), "other-node2")

    def test_bad_names_are_refused(self) -> None:
        for name in ("", "-a", "a-", "A", "a/b", "..", "a" * 23):
            with self.assertRaises(Failure, msg=name):
                check_name(name)
        self.assertEqual(check_name("a-1"), "a-1")

    def test_settings_survive_a_file(self) -> None:
        settings = Settings(index=3, nodes=4, kvm=True)
        self.assertEqual(Settings.from_json(settings.to_json()), settings)

    def test_an_unknown_node_is_named(self) -> None:
        with self.assertRaisesRegex(Failure, "node1, node2"):
            Layout("drydock", Settings(0), Path("/state")).node("node3")


if __name__ == "__main__":
    unittest.main()
