"""Installation of Drydock on a cluster."""

import contextlib
import io
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from embedded.errors import Failure
from embedded.progress import Progress
from verify import install, runner


class Images(unittest.TestCase):
    def test_interruption_ends_the_processes_of_the_build(self) -> None:
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        self.enterContext(mock.patch.object(runner, "_interrupted", threading.Event()))
        repository = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(install, "REPOSITORY", repository))
        begun = repository / "begun"
        program = repository / "hack" / "images"
        program.parent.mkdir()
        # Simulates a compiler that runs longer than the test may take.
        program.write_text(f"#!/bin/sh\nsleep 600 &\ntouch {begun}\nwait\n")
        program.chmod(0o755)

        def interrupt() -> None:
            while not begun.exists():
                time.sleep(0.01)
            runner.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        self.addCleanup(thread.join)
        cluster = mock.Mock()
        cluster.name = "images"
        # The call returns only when no process is left that could write to the output.
        with self.assertRaisesRegex(Failure, "could not be built"):
            install.images(cluster, Progress())


if __name__ == "__main__":
    unittest.main()
