"""Builds in the background."""

from __future__ import annotations

import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from embedded.errors import Failure
from verify import programs, runner


class BuiltMeanwhile(unittest.TestCase):
    def setUp(self) -> None:
        # An error calls `interrupt`, after which no command can start. Limit this to the test.
        self.enterContext(mock.patch.object(runner, "_interrupted", threading.Event()))

    def test_named_programs_are_built_and_the_exit_code_is_reported(self) -> None:
        with mock.patch.object(programs, "run", return_value=("built", 0)) as run:
            with programs.built_meanwhile("cluster", "virtctl") as building:
                self.assertEqual(building.result(), ("built", 0))
        self.assertEqual(run.call_args.args[0][1:], ["-m", "embedded.build", "cluster", "virtctl"])

    def test_an_error_inside_ends_the_build(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            began = Path(folder) / "began"
            # Simulates a Python process whose build runs longer than the test may take.
            program = Path(folder) / "python"
            program.write_text(f"#!/bin/sh\ntouch {began}\nexec sleep 600\n")
            program.chmod(0o755)
            with mock.patch.object(programs.sys, "executable", str(program)), self.assertRaisesRegex(Failure, "no disk"):
                with programs.built_meanwhile("cluster") as building:
                    while not began.exists() and not building.done():
                        time.sleep(0.01)
                    raise Failure("no disk")
        _, code = building.result()
        self.assertLess(code, 0)


if __name__ == "__main__":
    unittest.main()
