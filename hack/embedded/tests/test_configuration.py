"""Tests the configuration of the programs."""

from __future__ import annotations

import json
import tomllib
import unittest
from pathlib import Path

from embedded import controlplane, network, nodeconfig
from embedded.build import MODULES, VIRTCTL, Programs, version_variables
from embedded.certificates import Certificates
from embedded.controlplane import ControlPlane
from embedded.layout import Layout, Settings
from embedded.node import Node
from embedded.processes import Process

LAYOUT = Layout("test", Settings(7, nodes=2), Path("/state"))
PROGRAMS = Programs(
    {program: Path("/programs") for module in MODULES for program in module.programs}
)


def flags(process: Process) -> dict[str, str]:
    pairs = (word[2:].partition("=") for word in process.argv if word.startswith("--"))
    return {name: value for name, _, value in pairs}


class ControlPlaneFlags(unittest.TestCase):
    def setUp(self) -> None:
        self.control = ControlPlane(LAYOUT, PROGRAMS, Certificates(LAYOUT))

    def test_api_server_is_that_of_the_kubeconfig(self) -> None:
        found = flags(self.control.apiserver)
        self.assertEqual(
            LAYOUT.server, f"https://{found['bind-address']}:{found['secure-port']}"
        )

    def test_the_api_server_and_etcd_agree(self) -> None:
        servers = flags(self.control.apiserver)["etcd-servers"]
        self.assertEqual(servers, flags(self.control.etcd)["listen-client-urls"])

    def test_only_drydock_is_audited(self) -> None:
        policy = controlplane.audit_policy()
        *rules, last = policy["rules"]  # type: ignore[misc]
        for rule in rules:
            self.assertEqual(rule["userGroups"], ["system:serviceaccounts:drydock"])
        self.assertEqual([rule["level"] for rule in rules], ["Request", "Metadata"])
        self.assertNotIn("resources", rules[-1])
        self.assertEqual(last, {"level": "None"})

    def test_the_registry_listens_on_the_bridge(self) -> None:
        config = controlplane.registry_config(LAYOUT, Path("/images"))
        self.assertEqual(config["http"]["addr"], "10.89.7.1:5000")  # type: ignore[index]


class NodeConfiguration(unittest.TestCase):
    def test_containerd_config_is_toml(self) -> None:
        config = tomllib.loads(nodeconfig.containerd_config(LAYOUT, Path("/mirrors")))
        images = config["plugins"]["io.containerd.cri.v1.images"]
        self.assertEqual(images["registry"]["config_path"], "/mirrors")
        self.assertEqual(images["pinned_images"]["sandbox"], nodeconfig.SANDBOX_IMAGE)
        self.assertTrue(config["plugins"]["io.containerd.cri.v1.runtime"]["restrict_oom_score_adj"])

    def test_no_other_registry_is_contacted(self) -> None:
        mirror = tomllib.loads(nodeconfig.mirror_config("10.89.7.1:5000"))
        self.assertEqual(mirror["server"], "http://10.89.7.1:5000")
        self.assertEqual(list(mirror["host"]), ["http://10.89.7.1:5000"])

    def test_each_node_has_a_separate_cgroup(self) -> None:
        certificates = Certificates(LAYOUT)
        configs = [
            nodeconfig.kubelet_config(node, certificates, "/run/c.sock") for node in LAYOUT.nodes
        ]
        self.assertEqual(
            [config["cgroupRoot"] for config in configs],
            ["/drydock-embedded/test/node1", "/drydock-embedded/test/node2"],
        )
        json.dumps(configs)

    def test_pods_get_addresses_of_the_node(self) -> None:
        bridge = nodeconfig.cni_config(LAYOUT.nodes[1])["plugins"][0]  # type: ignore[index]
        self.assertEqual(bridge["ipam"]["ranges"], [[{"subnet": "10.135.2.0/24"}]])

    def test_every_process_has_a_unique_name(self) -> None:
        processes = ControlPlane(LAYOUT, PROGRAMS, Certificates(LAYOUT)).processes()
        for node in LAYOUT.nodes:
            single = Node(LAYOUT, node, PROGRAMS)
            processes += [single.machine, single.containerd]
        names = [process.part for process in processes]
        self.assertEqual(len(names), len(set(names)))


class Firewall(unittest.TestCase):
    def test_rules_differ_from_those_of_others(self) -> None:
        for rule in network.firewall_rules(LAYOUT):
            self.assertIn("drydock-embedded test", rule)


class Builds(unittest.TestCase):
    def test_modules_pin_the_built_packages(self) -> None:
        kubernetes = next(module for module in MODULES if module.name == "kubernetes")
        self.assertRegex(kubernetes.pin(), r"^v1\.\d+\.\d+$")
        self.assertIn(f"gitVersion={kubernetes.pin()}", kubernetes.linker_flags())

    def test_version_stamps(self) -> None:
        stamps = version_variables("v1.36.3", ["k8s.io/component-base/version"])
        self.assertEqual(stamps["k8s.io/component-base/version.gitMinor"], "36")
        self.assertIn("kubevirt.io/client-go/version.gitVersion=v1.9.0", VIRTCTL.linker_flags())

    def test_staging_modules_are_of_the_same_release(self) -> None:
        folder = next(module for module in MODULES if module.name == "kubernetes").folder
        lines = (folder / "go.mod").read_text().splitlines()
        replaced = {line.split()[-1] for line in lines if "=> k8s.io/" in line}
        self.assertEqual(len(replaced), 1)


if __name__ == "__main__":
    unittest.main()
