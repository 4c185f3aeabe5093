"""Tests pid files, marks, and the end of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from embedded import processes
from embedded.errors import Failure
from embedded.processes import Process


class PidFiles(unittest.TestCase):
    def test_only_a_plausible_pid_is_read(self) -> None:
        self.assertEqual(processes.parse_pid("123\n"), 123)
        for text in ("", "\n", "abc", "-5", "0", "1", "12 34"):
            self.assertIsNone(processes.parse_pid(text), text)


class Daemons(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = Path(folder.name)
        self.addCleanup(lambda: processes.kill_all(processes.of_cluster(self.cluster)))

    def process(self, *argv: str, **options: object) -> Process:
        command = argv or ("sleep", "1000")
        return Process("sleeper", command, self.cluster, **options)  # type: ignore[arg-type]

    def test_start_find_stop(self) -> None:
        process = self.process()
        self.assertFalse(process.is_running())
        process.start()
        pid = process.pid()
        assert pid is not None
        self.assertEqual(processes.of_cluster(self.cluster), [pid])
        self.assertTrue(process.is_current())
        process.stop()
        self.assertFalse(process.is_running())
        self.assertFalse(process.pid_file.exists())

    def test_ensure_starts_once(self) -> None:
        process = self.process()
        self.assertTrue(process.ensure())
        pid = process.pid()
        self.assertFalse(process.ensure())
        self.assertEqual(process.pid(), pid)

    def test_a_changed_command_line_restarts(self) -> None:
        self.process().ensure()
        changed = self.process("sleep", "2000")
        self.assertTrue(changed.is_running())
        self.assertFalse(changed.is_current())
        self.assertTrue(changed.ensure())
        self.assertTrue(changed.is_current())
        self.assertEqual(len(processes.of_cluster(self.cluster)), 1)

    def test_a_changed_configuration_restarts(self) -> None:
        file = self.cluster / "config"
        file.write_text("one")
        process = self.process(configuration=[file])
        process.ensure()
        file.write_text("two")
        self.assertFalse(process.is_current())

    def test_a_foreign_pid_is_never_signalled(self) -> None:
        with subprocess.Popen(["sleep", "1000"]) as stranger:
            process = self.process()
            process.pid_file.parent.mkdir(parents=True)
            process.pid_file.write_text(f"{stranger.pid}\n")
            self.assertFalse(process.is_running())
            process.stop()
            self.assertIsNone(stranger.poll())
            stranger.kill()

    def test_a_stray_is_replaced(self) -> None:
        process = self.process()
        process.start()
        stray = process.pid()
        process.pid_file.unlink()
        self.assertTrue(process.ensure())
        self.assertEqual(processes.of_cluster(self.cluster), [process.pid()])
        self.assertNotEqual(process.pid(), stray)

    def test_a_deaf_process_is_killed(self) -> None:
        process = self.process("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
        process.start()
        time.sleep(0.1)
        process.stop(patience=0.3)
        self.assertFalse(process.is_running())

    def test_the_wrapped_program_is_the_one_that_is_signalled(self) -> None:
        process = self.process(wrapper=["unshare", "--fork"])
        process.start()
        deadline = time.monotonic() + 5
        # The wrapper's child has the wrapper's name until it executes the program.
        while processes.command_name(process.pid() or 0) != "sleep" and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertNotEqual(process.pid(), process.tracked_pid())
        self.assertEqual(processes.command_name(process.pid() or 0), "sleep")
        process.stop(signal.SIGTERM)
        self.assertEqual(processes.of_cluster(self.cluster), [])

    def test_death_is_reported_with_the_last_lines(self) -> None:
        process = self.process("sh", "-c", "echo so long; exit 3")
        try:
            process.start()
        except Failure:
            pass
        deadline = time.monotonic() + 5
        while process.is_running() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertIn("so long", str(process.death()))

    def test_daemons_outlive_the_starting_process(self) -> None:
        process = self.process()
        process.start()
        pid = process.pid()
        assert pid is not None
        self.assertEqual(os.getsid(pid), pid)


if __name__ == "__main__":
    unittest.main()
