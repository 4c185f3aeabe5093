"""A cluster's life: what a killed one leaves, and that no command is left behind."""

from __future__ import annotations

import subprocess
import sys
import unittest
from unittest import mock

from embedded import lifecycle, processes
from embedded.progress import Progress


class LeftBehind(unittest.TestCase):
    def test_clusters_of_a_killed_life_are_named_unless_they_are_in_use(self) -> None:
        for there, command, expected in (
            ([], [], []),
            (["selftest", "selftest2", "verify"], [], ["selftest", "selftest2"]),
            (["selftest2"], ["python3", "-m", "verify", "embedded"], ["selftest2"]),
            (["selftest"], ["python3", "-m", "embedded", "selftest", "--name", "selftest", "--lifecycle"], []),
            (["selftest"], ["python3", "-m", "verify.up", "--name=selftest"], []),
        ):
            with (
                self.subTest(there=there, command=command),
                mock.patch.object(lifecycle.registered, "names", lambda: there),
                mock.patch.object(processes, "all_pids", lambda: [2]),
                mock.patch.object(processes, "command_line", lambda pid: command),
            ):
                self.assertEqual(lifecycle.left_behind("selftest"), expected)

    def test_command_line_of_a_process_is_read(self) -> None:
        program = "from embedded import processes; import os; print(processes.command_line(os.getpid())[-3:])"
        done = subprocess.run([sys.executable, "-c", program, "a b", "", "c"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "['a b', '', 'c']\n")
        self.assertEqual(processes.command_line(2**22 + 1), [])


class Crash(unittest.TestCase):
    def test_interruption_ends_the_command_that_was_to_crash(self) -> None:
        child = mock.Mock()
        child.wait.side_effect = [KeyboardInterrupt, 0]
        with mock.patch.object(subprocess, "Popen", return_value=child), self.assertRaises(KeyboardInterrupt):
            lifecycle._crash("selftest", 0.3, mock.create_autospec(Progress))
        child.kill.assert_called_once_with()
        self.assertEqual(child.wait.call_count, 2)


if __name__ == "__main__":
    unittest.main()
