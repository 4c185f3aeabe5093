"""Tests of the migration benchmark: parsing of ticks and statistics, the pods for migrations by virsh, and the relay."""

import json
import socket
import tempfile
import unittest
from pathlib import Path
from typing import Any

from embedded.errors import Failure
from measure.migration_time import KINDS, milestones, to_and_fro
from measure.moving_guests import Job, parse_job, stages
from measure.virsh_baseline import lone_pod, processors_group, relay, times, variable
from measure.relay import ROUTES, connect, listen
from measure.downtime import longest_gap, ticks


def line(second: float, printed: str) -> str:
    """Return a line of a pod's log."""
    return f"2026-05-01T12:00:{second:09.6f}Z {printed}"


def tick(second: float, number: int, boot: str = "aa") -> str:
    """Return a line of a pod's log with a tick."""
    return line(second, f"guest: tick {number} boot={boot} wall=1.000 up=1.000 late=0ms")


class Directions(unittest.TestCase):
    def test_moves_to_and_fro_are_averaged(self) -> None:
        for moves, expected in [([2.0, 4.0, 3.0, 5.0], [3.0, 4.0]), ([2.0, 4.0, 9.0], [3.0]), ([2.0], [2.0])]:
            self.assertEqual(to_and_fro(moves), expected)


class Standstills(unittest.TestCase):
    def test_the_longest_gap_is_found_across_two_pods(self) -> None:
        source = [line(0, "launcher: ready for the guest"), tick(1.0, 7), tick(1.02, 8), tick(1.05, 9)]
        target = [line(1.1, "launcher: ready for the guest"), tick(1.25, 10), tick(1.27, 11)]
        found = ticks(source, target)
        self.assertEqual([one.number for one in found], [7, 8, 9, 10, 11])
        self.assertAlmostEqual(longest_gap(found), 0.2)

    def test_a_line_that_the_move_cut_in_two_is_one(self) -> None:
        whole = tick(1.2, 8)
        head, tail = whole.split("wall=")
        source = [tick(1.0, 7), line(1.01, head.partition(" ")[2] + "wall=")]
        target = [line(1.3, f"guest: {tail}"), tick(1.4, 9)]
        found = ticks(source, target)
        self.assertEqual([one.number for one in found], [7, 8, 9])
        self.assertAlmostEqual(longest_gap(found), 0.3)

    def test_line_that_a_guest_prints_once_is_noticed(self) -> None:
        for name, found in (
            ("missing", [tick(1, 7), tick(2, 9)]),
            ("twice", [tick(1, 7), tick(2, 7)]),
            ("back", [tick(1, 7), tick(2, 6)]),
            ("another boot", [tick(1, 7), tick(2, 8, "bb")]),
            ("too few", [tick(1, 7)]),
        ):
            with self.subTest(name), self.assertRaises(Failure):
                longest_gap(ticks(found, []))


class Jobs(unittest.TestCase):
    def test_libvirts_record_is_read(self) -> None:
        text = (
            "Job type:         Completed   \n"
            "Time elapsed:     1891         ms\nTime elapsed w/o network: 1884         ms\n"
            "Data processed:   1.500 GiB\nData remaining:   0.000 B\n"
            "Dirty rate:       0            pages/s\n"
            "Total downtime:   131          ms\nDowntime w/o network: 124          ms\n"
        )
        self.assertEqual(parse_job(text), Job(1.891, 0.131, 1536.0))

    def test_a_record_of_nothing_is_no_record(self) -> None:
        with self.assertRaisesRegex(Failure, "Time elapsed"):
            parse_job("Job type:         None        \n")


class Times(unittest.TestCase):
    def test_virsh_ends_with_the_report_or_with_the_launcher(self) -> None:
        self.assertEqual(times("12.5\n13.25\n", 14.0), (12.5, 13.25))
        self.assertEqual(times("12.5\ncommand terminated with exit code 137\n", 14.0), (12.5, 14.0))
        for printed in ("12.5\nerror: no domain\ncommand terminated with exit code 1\n", "command terminated with exit code 137\n"):
            with self.assertRaises(Failure):
                times(printed, 14.0)


class Stages(unittest.TestCase):
    def test_each_phase_counts_from_the_first_sight(self) -> None:
        states: list[dict[str, Any]] = [
            {},
            {"phase": "Scheduling", "source": {"node": "node1"}},
            {"phase": "Running", "source": {"state": "Migrating"}},
            {"phase": "Running", "source": {"state": "Stopped"}, "target": {"state": "Running"}},
        ]
        found = stages((float(at), {"status": status}) for at, status in enumerate(states))
        expected = {"Scheduling": 1.0, "Running": 2.0, "source Migrating": 2.0, "source Stopped": 3.0, "target Running": 3.0}
        self.assertEqual(found, expected)

    def test_only_phases_of_all_samples_have_a_middle(self) -> None:
        found = [{"b": 2.0, "a": 1.0}, {"a": 3.0, "b": 4.0, "c": 5.0}, {"a": 2.0, "b": 9.0}]
        self.assertEqual(milestones(found), "a 2.00, b 4.00")


class Pods(unittest.TestCase):
    def test_pod_by_hand_has_the_launcher_and_no_label_of_drydock(self) -> None:
        guest = {"domain": "default_vm", "hostUuid": "one", "disks": [{"name": "root", "blank": {"size": 5}}]}
        like: dict[str, Any] = {
            "metadata": {"name": "virt-launcher-vm", "labels": {"kubevirt.io": "virt-launcher"}, "ownerReferences": [{}]},
            "spec": {
                "hostname": "vm",
                "securityContext": {"runAsUser": 107},
                "nodeName": "node1",
                "volumes": [{"name": "run", "emptyDir": {}}],
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "readinessGates": [{"conditionType": "drydock.dev/guest-running"}],
                "containers": [
                    {
                        "name": "compute",
                        "image": "launcher@sha256:1",
                        "imagePullPolicy": "IfNotPresent",
                        "resources": {},
                        "securityContext": {},
                        "volumeMounts": [],
                        "env": [{"name": "DRYDOCK_GUEST", "value": json.dumps(guest)}],
                    }
                ],
            },
        }
        made = lone_pod(like, "raw-1", "node2", "two")
        self.assertEqual(json.loads(variable(made)), {**guest, "hostUuid": "two"})
        self.assertEqual(made["metadata"], {"name": "raw-1"})
        self.assertEqual(made["spec"]["nodeSelector"], {"kubernetes.io/hostname": "node2"})
        self.assertNotIn("command", made["spec"]["containers"][0])
        self.assertNotIn("readinessGates", made["spec"])

    def test_kinds_differ_in_the_objects(self) -> None:
        small, _, dirtying = (kind.manifest() for kind in KINDS)
        self.assertEqual(small["spec"]["domain"]["resources"]["requests"]["memory"], "256Mi")
        self.assertNotIn("nodeSelector", small["spec"])
        scripts = [made["spec"]["volumes"][-1]["cloudInitNoCloud"]["userData"] for made in (small, dirtying)]
        self.assertEqual(["/tmp/dirty" in script for script in scripts], [False, True])


class Groups(unittest.TestCase):
    def test_the_group_is_found_in_both_versions(self) -> None:
        root = Path("/groups")
        for text, path in (
            ("0::/nodes/node1/pod\n", "/groups/nodes/node1/pod"),
            ("9:cpuset:/a\n4:cpu,cpuacct:/nodes/pod\n1:name=systemd:/b\n0::/c\n", "/groups/cpu,cpuacct/nodes/pod"),
        ):
            self.assertEqual(processors_group(text, root), Path(path))


class Relays(unittest.TestCase):
    def test_bytes_and_ends_pass_both_ways_at_paths_of_any_length(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            near, far = (Path(folder) / f"{name}{'x' * 120}" for name in ("near", "far"))
            for pod in (near, far):
                for part in ("migration", "libvirt"):
                    (pod / part).mkdir(parents=True)
            for encrypted in (False, True):
                with relay(near, far, encrypted=encrypted):
                    for here, there in ROUTES.items():
                        with self.subTest(here, encrypted=encrypted), listen(far / there) as server, connect(near / here) as client:
                            client.sendall(b"request" * 1000)
                            client.shutdown(socket.SHUT_WR)
                            with server.accept()[0] as arrived:
                                self.assertEqual(_all(arrived), b"request" * 1000)
                                arrived.sendall(b"response")
                            self.assertEqual(_all(client), b"response")

    def test_missing_mover_is_an_error_at_once(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            near, far = Path(folder) / "near", Path(folder) / "far"
            for pod in (near, far):
                for part in ("migration", "libvirt"):
                    (pod / part).mkdir(parents=True)
            with relay(near, far), connect(near / "migration/memory.sock") as client:
                self.assertEqual(_all(client), b"")


def _all(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


if __name__ == "__main__":
    unittest.main()
