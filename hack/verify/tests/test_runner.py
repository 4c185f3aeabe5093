"""Commands that are run to their end, and those that have none."""

import contextlib
import io
import sys
import unittest

from verify.runner import run


class Run(unittest.TestCase):
    def setUp(self) -> None:
        # The output of a failed command is shown, and would stand between the lines that are counted.
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def test_output_and_exit_code_are_kept(self) -> None:
        self.assertEqual(run(["sh", "-c", "echo one; echo two >&2; exit 3"], quiet=True), ("one\ntwo\n", 3))
        self.assertEqual(run(["sh", "-c", "echo $LANE"], {"LANE": "a"}, quiet=True), ("a\n", 0))

    def test_what_has_no_end_is_ended_with_all_that_it_began(self) -> None:
        # The output ends only when nobody is left who could write to it.
        hangs = "import subprocess, time; subprocess.Popen(['sleep', '3600']); print('begun', flush=True); time.sleep(3600)"
        output, code = run([sys.executable, "-c", hangs], quiet=True, most_seconds=2)
        self.assertNotEqual(code, 0)
        self.assertEqual(output.strip().splitlines()[-1], "no end within 2 s")
