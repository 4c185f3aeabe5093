"""Tests the packed files of the guest agent."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import unittest
from pathlib import Path

from guest import agent
from oci.progress import Failure

# A Debian program that is linked to only one library.
PROGRAM = Path("/bin/true")
LIBRARIES = Path("/lib/x86_64-linux-gnu")


class Agent(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copy(PROGRAM, self.folder / agent.PROGRAM)

    def test_libraries_and_loader_are_needed(self) -> None:
        self.assertEqual(agent.needed(PROGRAM), {"libc.so.6", "ld-linux-x86-64.so.2"})

    def test_missing_files_are_named(self) -> None:
        with self.assertRaisesRegex(Failure, r"contains (libc\.so\.6|ld-linux-x86-64\.so\.2)"):
            agent.closure(self.folder)

    def test_all_that_is_needed_is_packed_the_same_each_time(self) -> None:
        for name in ("libc.so.6", "ld-linux-x86-64.so.2"):
            shutil.copy(LIBRARIES / name, self.folder / name)
        archives = [self.folder / name for name in ("one.tgz", "two.tgz")]
        for archive in archives:
            agent.pack(self.folder, {"b.ko": b"b", "a.ko": b"a"}, archive)
        self.assertEqual(archives[0].read_bytes(), archives[1].read_bytes())
        with tarfile.open(archives[0]) as tar:
            names = ["a.ko", "b.ko", "ld-linux-x86-64.so.2", "libc.so.6", "order", agent.PROGRAM]
            self.assertEqual(tar.getnames(), names)
            order = tar.extractfile("order")
            assert order is not None
            self.assertEqual(order.read(), b"b.ko\na.ko\n")
            self.assertTrue(all(member.mode == 0o755 for member in tar.getmembers()))
