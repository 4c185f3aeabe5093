"""Execution of commands, including commands that do not end."""

import contextlib
import errno
import io
import sys
import threading
import unittest
from unittest import mock

from verify import runner
from verify.runner import run


class Run(unittest.TestCase):
    def setUp(self) -> None:
        # The runner shows the output of a failed command, which would be mixed with the test results that are counted.
        self.shown = self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def test_output_and_exit_code_are_kept(self) -> None:
        self.assertEqual(run(["sh", "-c", "echo one; echo two >&2; exit 3"], quiet=True), ("one\ntwo\n", 3))
        self.assertEqual(run(["sh", "-c", "echo $LANE"], {"LANE": "a"}, quiet=True), ("a\n", 0))

    def test_stamped_lines_are_shown_with_seconds_and_kept_without(self) -> None:
        self.assertEqual(run(["echo", "one"], prefix="lane: ", stamped=True), ("one\n", 0))
        self.assertRegex(self.shown.getvalue(), r"^    lane: +\d+\.\ds one\n$")
        run(["echo", "two"], prefix="lane: ")
        self.assertIn("    lane: two\n", self.shown.getvalue())

    def test_output_is_kept_when_the_terminal_is_gone(self) -> None:
        gone = mock.Mock(**{"write.side_effect": OSError(errno.EIO, "Input/output error")})
        with contextlib.redirect_stderr(gone):
            self.assertEqual(run(["sh", "-c", "echo one; exec >&-; exit 3"]), ("one\n", 3))
        gone.write.assert_called()

    def test_endless_command_is_ended_with_all_children(self) -> None:
        # The output ends only when no process has it open for writing.
        hangs = "import subprocess, time; subprocess.Popen(['sleep', '3600']); print('begun', flush=True); time.sleep(3600)"
        output, code = run([sys.executable, "-c", hangs], quiet=True, most_seconds=2)
        self.assertNotEqual(code, 0)
        self.assertEqual(output.strip().splitlines()[-1], "timeout after 2 s")

    def test_nothing_is_begun_after_an_interruption(self) -> None:
        with mock.patch.object(runner, "_interrupted", threading.Event()):
            runner.interrupt()
            with self.assertRaises(KeyboardInterrupt):
                run(["true"], quiet=True)
        self.assertEqual(run(["true"], quiet=True), ("", 0))
