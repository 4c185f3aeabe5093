"""Clean-up of a command that is terminated."""

from __future__ import annotations

import signal
import subprocess
import sys
import unittest

PROGRAM = """
import signal
from embedded import interruption

interruption.heed_termination()
try:
    print("ready", flush=True)
    signal.pause()
finally:
    print("cleaned up", flush=True)
"""


class Interruption(unittest.TestCase):
    def test_command_that_is_terminated_cleans_up(self) -> None:
        argv = [sys.executable, "-c", PROGRAM]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            self.assertEqual(child.stdout.readline(), "ready\n")
            child.send_signal(signal.SIGTERM)
            printed, error = child.communicate(timeout=60)
        self.assertEqual(printed, "cleaned up\n")
        self.assertIn("KeyboardInterrupt", error)


if __name__ == "__main__":
    unittest.main()
