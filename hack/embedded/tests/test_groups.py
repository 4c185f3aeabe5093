"""Tests cgroups and sysctls on folders that imitate them."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from embedded import cgroups, sysctls


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)


class Version1(WithFolder):
    def setUp(self) -> None:
        super().setUp()
        for controller in ("cpuset", "memory"):
            (self.root / controller).mkdir()
            (self.root / controller / "cgroup.procs").write_text("1\n")
        (self.root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
        # A link to a controller is not another controller.
        (self.root / "cpu,cpuset").symlink_to("cpuset")

    def test_hierarchies_are_the_real_folders(self) -> None:
        names = [path.name for path in cgroups.hierarchies(self.root)]
        self.assertEqual(names, ["cpuset", "memory"])

    def test_groups_are_made_everywhere(self) -> None:
        cgroups.ensure("/drydock-embedded/a/node1", self.root)
        cgroups.ensure("/drydock-embedded/a/node1", self.root)
        for controller in ("cpuset", "memory"):
            self.assertTrue((self.root / controller / "drydock-embedded/a/node1").is_dir())

    def test_groups_go_with_the_children(self) -> None:
        cgroups.ensure("/drydock-embedded/a/node1/kubepods", self.root)
        cgroups.remove("/drydock-embedded/a", self.root)
        self.assertFalse((self.root / "memory" / "drydock-embedded").exists())

    def test_other_clusters_stay(self) -> None:
        cgroups.ensure("/drydock-embedded/a", self.root)
        cgroups.ensure("/drydock-embedded/b", self.root)
        cgroups.remove("/drydock-embedded/a", self.root)
        self.assertTrue((self.root / "memory" / "drydock-embedded/b").is_dir())

    def test_processes_are_found_at_any_depth(self) -> None:
        cgroups.ensure("/a/b", self.root)
        (self.root / "memory/a/b/cgroup.procs").write_text("12\n0\n13\n")
        self.assertEqual(cgroups.pids("/a", self.root), {12, 13})


class Version2(WithFolder):
    def test_controllers_are_passed_down(self) -> None:
        (self.root / "cgroup.controllers").write_text("cpu memory\n")
        (self.root / "cgroup.subtree_control").write_text("cpu\n")
        self.assertTrue(cgroups.is_unified(self.root))
        self.assertEqual(cgroups.hierarchies(self.root), [self.root])
        cgroups._pass_controllers_down(self.root)
        self.assertIn("+memory", (self.root / "cgroup.subtree_control").read_text())


class KernelSettings(WithFolder):
    def test_found_values_come_back(self) -> None:
        forward = self.root / "net/ipv4/ip_forward"
        watches = self.root / "fs/inotify/max_user_watches"
        for path, value in ((forward, "0"), (watches, "8192")):
            path.parent.mkdir(parents=True)
            path.write_text(value)
        record = self.root / "record.json"
        sysctls.apply(record, self.root)
        sysctls.apply(record, self.root)
        self.assertEqual((forward.read_text(), watches.read_text()), ("1", "524288"))
        sysctls.restore(record, self.root)
        self.assertEqual((forward.read_text(), watches.read_text()), ("0", "8192"))
        self.assertFalse(record.exists())

    def test_enough_is_left_alone(self) -> None:
        watches = self.root / "fs/inotify/max_user_watches"
        watches.parent.mkdir(parents=True)
        watches.write_text("9999999")
        forward = self.root / "net/ipv4/ip_forward"
        forward.parent.mkdir(parents=True)
        forward.write_text("1")
        sysctls.apply(self.root / "record.json", self.root)
        self.assertEqual(watches.read_text(), "9999999")


if __name__ == "__main__":
    unittest.main()
