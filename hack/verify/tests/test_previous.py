"""The source and the workloads of the previous release, and the table of results."""

import json
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from embedded.errors import Failure
from embedded.progress import Progress
from verify.previous import COMMIT, FILE, TESTS, UNUSED_DAYS, source, table, workload
from verify.runner import REPOSITORY


class Source(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        cache = mock.patch.dict(os.environ, {"DRYDOCK_CACHE": str(self.folder / "cache")})
        cache.start()
        self.addCleanup(cache.stop)
        # A git hook and `git rebase --exec` set variables that name their repository: `git init` would change that repository.
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            del os.environ[name]
        self.repository = self.folder / "repository"
        self.repository.mkdir()
        self.git("init", "-q")
        (self.repository / "file").write_text("earlier")
        self.git("add", "file")
        self.git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "first")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.repository, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def test_files_of_a_commit_are_taken_once(self) -> None:
        commit = self.git("rev-parse", "HEAD")
        (self.repository / "file").write_text("later")
        tree = source(commit, Progress(), self.repository)
        self.assertEqual((tree / "file").read_text(), "earlier")
        (tree / "file").write_text("kept")
        self.assertEqual((source(commit, Progress(), self.repository) / "file").read_text(), "kept")

    def test_releases_that_nothing_uses_any_more_are_removed(self) -> None:
        commit = self.git("rev-parse", "HEAD")
        tree = source(commit, Progress(), self.repository)
        releases = tree.parent.parent
        old = time.time() - (UNUSED_DAYS + 1) * 86400
        for name in ("unused", "used"):
            (releases / name / "target").mkdir(parents=True)
        os.utime(releases / "unused", (old, old))
        os.utime(tree.parent, (old, old))
        source(commit, Progress(), self.repository)
        self.assertEqual({path.name for path in releases.iterdir()}, {commit, "unused", "used"})
        self.git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "second")
        later = self.git("rev-parse", "HEAD")
        source(later, Progress(), self.repository)
        self.assertEqual({path.name for path in releases.iterdir()}, {commit, later, "used"})

    def test_commit_that_is_not_in_the_history_is_named(self) -> None:
        with self.assertRaisesRegex(Failure, COMMIT + ".*unshallow"):
            source(COMMIT, Progress(), self.repository)

    def test_workload_has_the_images_and_the_strategy(self) -> None:
        manifest = REPOSITORY / "deploy" / "agent" / "daemonset.yaml"
        made = workload(self.folder / "agents", manifest, {"agent": "sha256:1"}, {"type": "OnDelete"})
        reported = json.loads((made / "kustomization.yaml").read_text())
        self.assertEqual(reported["images"], [{"name": "localhost/drydock/agent", "digest": "sha256:1"}])
        self.assertEqual(json.loads(reported["patches"][0]["patch"])[0]["value"], {"type": "OnDelete"})
        for name in [*reported["resources"], *reported["configurations"]]:
            self.assertTrue((made / name).exists(), name)


class Result(unittest.TestCase):
    def test_each_test_has_a_row(self) -> None:
        output = f"test {TESTS}a ... ok\nnoise\ntest {TESTS}b ... FAILED\ntest other ... ok\n"
        rows = [line for line in table(output).splitlines() if line.startswith("| `")]
        self.assertEqual(rows, [f"| `{TESTS}a` | passed |", f"| `{TESTS}b` | **failed** |"])

    def test_there_are_such_tests(self) -> None:
        text = (REPOSITORY / "tests" / "tests" / f"{FILE}.rs").read_text()
        self.assertEqual(text.count(f"async fn {TESTS}"), 2)
