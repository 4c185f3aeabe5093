"""Tests that the life cycle test finds leftovers of a killed run and leaves no command behind."""

from __future__ import annotations

import subprocess
import sys
import unittest
from unittest import mock

from embedded import lifecycle, processes
from embedded.errors import Failure
from embedded.progress import Progress


class LeftBehind(unittest.TestCase):
    def test_clusters_of_a_killed_life_are_named_unless_in_use(self) -> None:
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
        argv = [sys.executable, "-c", program, "a b", "", "c"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(done.stdout, "['a b', '', 'c']\n")
        self.assertEqual(processes.command_line(2**22 + 1), [])


class Run(unittest.TestCase):
    def test_clusters_that_were_there_are_not_taken(self) -> None:
        for there in ("selftest", "selftest2"):
            with (
                mock.patch.object(lifecycle.registered, "names", lambda: [there]),
                mock.patch.object(lifecycle.clusters, "down") as down,
                self.assertRaisesRegex(Failure, f"cluster {there} exists"),
            ):
                lifecycle.run("selftest", mock.Mock(), mock.create_autospec(Progress))
            down.assert_not_called()

    def test_cluster_that_cannot_be_removed_keeps_no_other(self) -> None:
        removed: list[str] = []

        def down(name: str, progress: Progress) -> None:
            if name == "selftest":
                raise Failure("processes [7] survive SIGKILL")
            removed.append(name)

        for name in ("_crash", "_kill_parts", "_kill_node"):
            self.enterContext(mock.patch.object(lifecycle, name))
        self.enterContext(mock.patch.object(lifecycle, "_timed_up", return_value=(mock.Mock(), 1.0)))
        self.enterContext(mock.patch.object(lifecycle, "_beside", return_value=2))
        self.enterContext(mock.patch.object(lifecycle, "_compare", return_value=4))
        self.enterContext(mock.patch.object(lifecycle.leftovers, "take"))
        self.enterContext(mock.patch.object(lifecycle.registered, "names", lambda: []))
        self.enterContext(mock.patch.object(lifecycle.clusters, "down", down))
        progress = mock.create_autospec(Progress)
        self.assertEqual(lifecycle.run("selftest", lambda *_: 8, progress), 1 + 2 + 4 + 8)
        self.assertEqual(removed, ["selftest2"])
        line = "cluster selftest cannot be removed: processes [7] survive SIGKILL"
        progress.note.assert_called_once_with(f"FAILED  {line}")


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
