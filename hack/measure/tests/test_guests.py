"""Tests of parsing guests' logs, processes' memory and the audit log, and of the pod for starts by virsh."""

import unittest
from datetime import datetime, timedelta, timezone
from typing import Any

from measure.audit import Request, request, split
from measure.guest_memory import parse
from measure.guest_start import raw_pod
from measure.guests import printed
from measure.pods import resident

NOON = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


def event(**changed: Any) -> dict[str, Any]:
    """Return an event of an audit log, with these fields replaced."""
    return {
        "requestReceivedTimestamp": "2026-05-01T12:00:00.500000Z",
        "stage": "ResponseComplete",
        "verb": "patch",
        "user": {
            "username": "system:serviceaccount:drydock:drydock-agent",
            "extra": {"authentication.kubernetes.io/pod-name": ["drydock-agent-abcde"]},
        },
        "objectRef": {"resource": "virtualmachineinstances", "subresource": "status", "name": "vm"},
        **changed,
    }


class Logs(unittest.TestCase):
    def test_only_lines_of_the_guest_are_guest_output(self) -> None:
        at = NOON + timedelta(microseconds=123456)
        for line, found in (
            ("2026-05-01T12:00:00.123456789Z guest: [    0.000000] Linux version 6.12\n", (at, "[    0.000000] Linux version 6.12")),
            ("2026-05-01T12:00:00.123456789Z guest: \n", (at, "")),
            ("2026-05-01T12:00:00.123456789Z launcher: guest: no\n", None),
            ("rpc error: code = NotFound desc = an error occurred when try to find container\n", None),
            ("\n", None),
        ):
            self.assertEqual(printed(line), found, line)


class Audits(unittest.TestCase):
    def test_a_request_counts_once_and_only_within_the_window(self) -> None:
        def found(**changed: Any) -> Request | None:
            return request(event(**changed), NOON, NOON + timedelta(seconds=1))

        status = Request("drydock-agent-abcde", "drydock-agent", "patch", "virtualmachineinstances/status", "vm")
        self.assertEqual(found(), status)
        self.assertTrue(status.writes)
        self.assertIsNone(found(stage="ResponseStarted"))
        self.assertIsNone(found(requestReceivedTimestamp="2026-05-01T12:00:01.500000Z"))
        self.assertIsNone(found(requestReceivedTimestamp="2026-05-01T11:59:59.500000Z"))

    def test_signs_of_life_and_reading_are_no_writes(self) -> None:
        for verb, resource, writes in (
            ("create", "pods", True),
            ("delete", "pods", True),
            ("get", "pods", False),
            ("watch", "pods", False),
            ("update", "leases", False),
        ):
            self.assertEqual(Request("p", "drydock-controller", verb, resource, "n").writes, writes, f"{verb} {resource}")

    def test_kinds_are_counted(self) -> None:
        create = Request("p", "drydock-controller", "create", "pods", "a")
        patch = Request("q", "drydock-agent", "patch", "pods/status", "a")
        self.assertEqual(split([patch, create, patch]), "2 × agent patch pods/status, 1 × controller create pods")
        self.assertEqual(split([]), "none")


class Memory(unittest.TestCase):
    def test_processes_add_up_by_name(self) -> None:
        text = (
            "process libvirtd\nPss:  2048 kB\nRssAnon:  1024 kB\n"
            "process passt.avx2\nPss:  512 kB\nRssAnon:  512 kB\n"
            "process libvirtd\nPss:  1024 kB\nRssAnon:  1024 kB\nprocess libvirtd\n"
        )
        beside = parse(text)
        self.assertEqual(dict(beside.pss), {"libvirtd": 3.0, "passt.avx2": 0.5})
        self.assertEqual(dict(beside.anonymous), {"libvirtd": 2.0, "passt.avx2": 0.5})


    def test_pages_of_a_file_that_two_processes_map_are_there_once(self) -> None:
        def smaps(code: int, heap: int, library: int) -> str:
            rows = [("7f00-7f10 r-xp 00000000 fe:00 77 /program", code, 0), ("7f10-7f20 rw-p 00000000 fe:00 77 /program", 8, 8)]
            rows += [("7f30-7f40 rw-p 00000000 00:00 0 [heap]", heap, heap), ("7f50-7f60 r--p 00000000 fe:00 78 /library", library, 0)]
            return "".join(f"{head}\nRss: {rss:14} kB\nPss: 1 kB\nAnonymous: {own:8} kB\n" for head, rss, own in rows)

        # 2 MiB of the program, 0.5 MiB of the library, and the private memory: 1 and 0.5 MiB of heap, 8 KiB of data each.
        both = resident([smaps(2048, 1024, 256), smaps(1024, 512, 512)])
        self.assertEqual(both, (2048 + 512 + 1024 + 512 + 8 + 8) / 1024)
        self.assertEqual(resident([smaps(2048, 1024, 256)]), (2048 + 256 + 1024 + 8) / 1024)


class Pods(unittest.TestCase):
    def test_the_pod_for_a_guest_by_hand_is_like_a_guests(self) -> None:
        container = {
            "name": "compute",
            "image": "launcher@sha256:1",
            "imagePullPolicy": "IfNotPresent",
            "resources": {},
            "securityContext": {"readOnlyRootFilesystem": True},
            "volumeMounts": [{"name": "run", "mountPath": "/run/drydock"}],
            "env": [{"name": "DRYDOCK_GUEST", "value": "{}"}],
            "terminationMessagePath": "/dev/termination-log",
        }
        spec = {
            "securityContext": {"runAsUser": 107},
            "nodeName": "node1",
            "volumes": [{"name": "run", "emptyDir": {}}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "readinessGates": [{"conditionType": "drydock.dev/guest-running"}],
            "containers": [container],
        }
        made = raw_pod({"metadata": {"labels": {"kubevirt.io": "virt-launcher"}}, "spec": spec})
        for key in ("securityContext", "volumes"):
            self.assertEqual(made["spec"][key], spec[key])
        self.assertEqual(made["spec"]["nodeSelector"], {"kubernetes.io/hostname": "node1"})
        self.assertEqual(made["spec"]["containers"][0]["image"], "launcher@sha256:1")
        # With these, the pod would wait for an agent, be treated as a guest's pod, and start a guest.
        self.assertNotIn("readinessGates", made["spec"])
        self.assertNotIn("labels", made["metadata"])
        self.assertNotIn("env", made["spec"]["containers"][0])


if __name__ == "__main__":
    unittest.main()
