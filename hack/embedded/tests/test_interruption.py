"""Tests the clean-up of a command that is terminated or loses its terminal."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from embedded import __main__ as embedded
from embedded import interruption
from embedded.progress import Progress, show

# During its clean-up, the program prints the line that it reads.
PROGRAM = """
import signal, sys
from embedded import interruption

interruption.heed_termination()
try:
    print("ready", flush=True)
    signal.pause()
finally:
    print("cleans up", flush=True)
    print(sys.stdin.readline(), flush=True)
"""


class Interruption(unittest.TestCase):
    def start(self, *wrapper: str) -> subprocess.Popen[str]:
        """Start the program and wait until it is ready for a signal."""
        argv = [*wrapper, sys.executable, "-c", PROGRAM]
        pipe = subprocess.PIPE
        # Reset SIGHUP, because the tests themselves may run under nohup.
        child = self.enterContext(
            subprocess.Popen(
                argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )
        )
        # Do not wait for a child that ignores a signal.
        self.addCleanup(child.kill)
        self.assertEqual(self.line(child), "ready\n")
        return child

    def line(self, child: subprocess.Popen[str]) -> str:
        """Return the next line of the child's output."""
        assert child.stdout is not None
        return child.stdout.readline()

    def test_command_that_is_terminated_cleans_up(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                child = self.start()
                child.send_signal(number)
                printed, error = child.communicate("cleaned up", timeout=60)
                self.assertEqual(printed, "cleans up\ncleaned up\n")
                self.assertIn("KeyboardInterrupt", error)

    def test_second_hang_up_does_not_end_the_clean_up(self) -> None:
        child = self.start()
        child.send_signal(signal.SIGHUP)
        self.assertEqual(self.line(child), "cleans up\n")
        child.send_signal(signal.SIGHUP)
        self.assertEqual(child.communicate("cleaned up", timeout=60)[0], "cleaned up\n")

    def test_command_under_nohup_runs_on_after_a_hang_up(self) -> None:
        # Use a wrapper, because nohup itself appends to a file if it has a terminal.
        child = self.start("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
        child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGTERM)
        error = child.communicate("cleaned up", timeout=60)[1]
        self.assertNotIn("_hang_up", error)
        self.assertIn("KeyboardInterrupt", error)

    def test_embedded_commands_heed_a_termination(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.dict(os.environ, {"DRYDOCK_STATE": folder}))
        with mock.patch.object(interruption, "heed_termination") as heed:
            self.assertEqual(embedded.main(["list"]), 0)
        heed.assert_called_once_with()


class Broken(io.StringIO):
    """A stream on which each write fails with the given error number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


class Terminal(unittest.TestCase):
    def test_progress_goes_on_without_a_terminal(self) -> None:
        for number in (errno.EIO, errno.EPIPE):
            with contextlib.redirect_stderr(Broken(number)), Progress().step("removing", announce=True):
                show("a line")

    def test_full_disk_is_an_error(self) -> None:
        with contextlib.redirect_stderr(Broken(errno.ENOSPC)), self.assertRaisesRegex(OSError, "No space"):
            show("a line")


if __name__ == "__main__":
    unittest.main()
