"""Tests when the image store is cleaned up."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from embedded import imagestore, locks, processes, teardown
from embedded.errors import Failure
from embedded.progress import Progress


class Sweep(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Path(self.enterContext(tempfile.TemporaryDirectory())) / "registry"
        self.progress = mock.create_autospec(Progress)
        self.configurations: list[dict[str, object]] = []
        self.enterContext(mock.patch.object(imagestore, "run", self.run_command))
        self.enterContext(mock.patch.object(shutil, "which", lambda name: f"/usr/bin/{name}"))
        self.environment: dict[str, str] = {}
        self.enterContext(mock.patch.object(processes, "all_pids", lambda: [2]))
        self.enterContext(mock.patch.object(processes, "read_environment", lambda pid: self.environment))
        blob = self.store / "docker" / "blobs" / "ab" / "data"
        blob.parent.mkdir(parents=True)
        blob.write_bytes(b"x" * 100)

    def run_command(self, *argv: str, timeout: float) -> str:
        """Record the configuration of a garbage collection."""
        self.assertEqual(argv[:3], ("docker-registry", "garbage-collect", "--delete-untagged"))
        self.configurations.append(json.loads(Path(argv[3]).read_text()))
        return ""

    def test_store_is_swept_from_the_limit_on(self) -> None:
        for limit, swept in ((101, 0), (100, 1)):
            imagestore.sweep(self.store, self.progress, limit)
            self.assertEqual(len(self.configurations), swept, limit)
        self.assertIn(str(self.store), json.dumps(self.configurations))

    def test_store_that_is_in_use_or_missing_is_left(self) -> None:
        self.environment = {processes.MARK_PART: "registry"}
        imagestore.sweep(self.store, self.progress, 0)
        self.environment = {processes.MARK_PART: "etcd"}
        imagestore.sweep(self.store / "none", self.progress, 0)
        with mock.patch.object(shutil, "which", lambda name: None):
            imagestore.sweep(self.store, self.progress, 0)
        self.assertEqual(self.configurations, [])

    def test_failure_is_noted_only(self) -> None:
        with mock.patch.object(imagestore, "run", side_effect=Failure("no repositories")):
            imagestore.sweep(self.store, self.progress, 0)
        self.assertIn("untagged images could not be removed from", self.progress.note.call_args.args[0])
        self.assertIn(": no repositories", self.progress.note.call_args.args[0])


class LastCluster(unittest.TestCase):
    def test_store_is_swept_when_the_last_cluster_has_gone(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        folders = {"DRYDOCK_STATE": f"{folder}/state", "DRYDOCK_CACHE": f"{folder}/cache"}
        self.enterContext(mock.patch.dict(os.environ, folders))
        self.enterContext(mock.patch.object(teardown, "_NETNS_FOLDER", Path(folder) / "netns"))
        self.enterContext(mock.patch.object(teardown.sysctls, "restore"))
        sweep = self.enterContext(mock.patch.object(teardown.imagestore, "sweep"))
        for left, swept in ((["other"], False), ([], True)):
            (Path(folder) / "state").mkdir(exist_ok=True)
            with mock.patch.object(teardown.registered, "names", lambda: left):
                # While this lock is held, no cluster can be brought up.
                sweep.side_effect = lambda *_: self.assertTrue((locks.state_root() / ".lock").exists())
                teardown._leave_if_last(mock.create_autospec(Progress))
            self.assertEqual(sweep.called, swept)
        self.assertEqual(sweep.call_args.args[0], Path(folder) / "cache" / "registry")
        self.assertFalse((Path(folder) / "state").exists())


if __name__ == "__main__":
    unittest.main()
