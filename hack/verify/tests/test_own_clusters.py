"""Commands that create their own cluster delete it if its start fails."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from embedded import cluster
from embedded.errors import Failure
from embedded.progress import Progress
from measure import __main__ as measure
from verify import corpus, faults, previous


class OwnClusters(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.dict(os.environ, {"CARGO_TARGET_DIR": self.folder}))
        self.enterContext(mock.patch.object(cluster, "up", side_effect=Failure("etcd died")))
        self.down = self.enterContext(mock.patch.object(cluster, "down"))
        self.enterContext(mock.patch.object(previous, "source", return_value=Path(self.folder)))
        self.enterContext(mock.patch.object(corpus.interruption, "heed_termination"))
        self.enterContext(mock.patch.object(measure.registered, "names", lambda: []))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def bench(self, arguments: argparse.Namespace, progress: Progress) -> None:
        """Start a benchmark."""
        with measure._cluster(measure.NAME, None, arguments.keep, progress):
            pass

    def judge(self, arguments: argparse.Namespace, progress: Progress) -> None:
        """Run the corpus check on a folder."""
        options = ["--name", corpus.NAME] if arguments.keep else []
        if corpus.main([self.folder, *options]) != 0:
            raise Failure("as printed")

    def test_cluster_that_came_up_only_in_part_goes(self) -> None:
        runs: dict[str, Callable[[argparse.Namespace, Progress], object]] = {
            faults.NAME: faults.run,
            previous.NAME: previous.run,
            corpus.NAME: self.judge,
            measure.NAME: self.bench,
        }
        for name, run in runs.items():
            for keep in (False, True):
                with self.subTest(name=name, keep=keep), self.assertRaises(Failure):
                    run(argparse.Namespace(keep=keep, again=False, only=""), mock.create_autospec(Progress))
                self.assertEqual([call.args[0] for call in self.down.call_args_list], [] if keep else [name])
                self.down.reset_mock()


if __name__ == "__main__":
    unittest.main()
