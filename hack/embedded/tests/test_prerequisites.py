"""Tests the state of the machine after the installation of packages, including after an interruption."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from embedded import prerequisites
from embedded.progress import Progress


class Quiet(Progress):
    """A progress that records its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


class Machine(unittest.TestCase):
    """A simulated machine: only files in a temporary folder and the list of packages change."""

    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.policy = folder / "policy-rc.d"
        self.lock = folder / "run" / "packages.lock"
        self.installed = {"ca-certificates"}
        self.commands: list[list[str]] = []
        self.codes: dict[str, int] = {}
        self.policies: list[bool] = []
        self.progress = Quiet()
        for name, value in {
            "_POLICY": self.policy,
            "_LOCK": self.lock,
            "PACKAGES": {"one": ("ca-certificates", "docker-registry"), "two": ("busybox-static",)},
            "_absent": lambda wanted: [package for package in wanted if package not in self.installed],
            "_run_to_end": self.run_to_end,
        }.items():
            self.enterContext(mock.patch.object(prerequisites, name, value))
        self.enterContext(mock.patch.object(os, "geteuid", lambda: 0))
        self.enterContext(mock.patch.object(prerequisites.time, "sleep", lambda seconds: None))

    def run_to_end(self, argv: Sequence[str], progress: Progress, environment: object = None) -> tuple[int, str]:
        """Record a command and simulate its effect."""
        self.commands.append(list(argv))
        self.policies.append(self.policy.exists())
        code = self.codes.get(argv[0], 0)
        if "install" in argv and code == 0:
            self.installed.update(argv[argv.index("--no-install-recommends") + 1 :])
        return code, "printed"

    def ensure(self, *groups: str) -> None:
        """Install the packages of these groups."""
        prerequisites.ensure(groups, self.progress, toolchains=())

    def names(self) -> list[str]:
        """Return the recorded commands, each with the word that distinguishes it."""
        words = ("update", "install")
        return [" ".join([argv[0], *(word for word in words if word in argv)]) for argv in self.commands]


class Installation(Machine):
    def test_dpkg_is_mended_before_each_attempt_of_apt(self) -> None:
        self.ensure("two")
        self.assertEqual(self.names(), ["dpkg", "apt-get update", "dpkg", "apt-get install"])
        self.assertEqual(self.commands[0], ["dpkg", "--configure", "-a"])
        self.assertEqual(set(self.policies), {True})
        self.assertFalse(self.policy.exists())

    def test_dpkg_that_cannot_be_mended_leaves_the_report_to_apt(self) -> None:
        self.codes["dpkg"] = 2
        self.ensure("two")
        self.assertIn("busybox-static", self.installed)

    def test_nothing_runs_if_nothing_is_missing(self) -> None:
        self.installed.add("busybox-static")
        self.ensure("two")
        self.assertEqual(self.commands, [])

    def test_service_of_a_new_package_is_disabled(self) -> None:
        self.ensure("one")
        self.assertEqual(
            self.commands[-2:],
            [
                ["update-rc.d", "docker-registry", "disable"],
                ["deb-systemd-helper", "disable", "docker-registry.service"],
            ],
        )

    def test_service_of_a_package_that_was_there_stays_enabled(self) -> None:
        self.installed.add("docker-registry")
        self.ensure("one", "two")
        self.assertEqual(self.names()[-1], "apt-get install")

    def test_service_is_disabled_after_an_interruption(self) -> None:
        def interrupted(argv: Sequence[str], progress: Progress, environment: object = None) -> tuple[int, str]:
            result = self.run_to_end(argv, progress)
            if "install" in argv:
                raise KeyboardInterrupt
            return result

        with mock.patch.object(prerequisites, "_run_to_end", interrupted), self.assertRaises(KeyboardInterrupt):
            self.ensure("one")
        self.assertEqual(self.names()[-2:], ["update-rc.d", "deb-systemd-helper"])
        self.assertFalse(self.policy.exists())

    def test_service_that_cannot_be_disabled_is_named(self) -> None:
        for codes, named in (({"update-rc.d": 1}, False), ({"update-rc.d": 127, "deb-systemd-helper": 127}, True)):
            self.installed.discard("docker-registry")
            self.progress.lines.clear()
            self.codes = codes
            self.ensure("one")
            self.assertEqual("docker-registry could not be disabled" in "".join(self.progress.lines), named, codes)


class Policy(Machine):
    def setUp(self) -> None:
        super().setUp()
        self.installed |= {"docker-registry", "busybox-static"}

    def test_policy_of_a_killed_installation_is_removed(self) -> None:
        self.policy.write_text(prerequisites._POLICY_TEXT)
        self.ensure("one")
        self.assertFalse(self.policy.exists())

    def test_policy_of_another_package_stays(self) -> None:
        self.policy.write_bytes(b"#!/bin/sh\n# \xff\nexit 101\n")
        self.ensure("one")
        self.installed.discard("busybox-static")
        self.ensure("two")
        self.assertEqual(self.policy.read_bytes(), b"#!/bin/sh\n# \xff\nexit 101\n")

    def test_policy_of_a_running_installation_stays(self) -> None:
        self.policy.write_text(prerequisites._POLICY_TEXT)
        self.lock.parent.mkdir()
        with self.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.ensure("one")
        self.assertTrue(self.policy.exists())


class RunToEnd(unittest.TestCase):
    def test_exit_code_and_output_are_returned(self) -> None:
        run = prerequisites._run_to_end
        self.assertEqual(run(["sh", "-c", "echo $LC_ALL$A; exit 3"], Quiet(), {"A": "b"}), (3, "C.UTF-8b\n"))
        self.assertEqual(run(["/no/such/program"], Quiet()), (127, "command not found: /no/such/program"))

    def test_interruption_waits_for_the_end_of_the_command(self) -> None:
        process = mock.Mock()
        process.wait.side_effect = [KeyboardInterrupt, 0]
        progress = Quiet()
        popen = self.enterContext(mock.patch.object(subprocess, "Popen", return_value=process))
        with self.assertRaises(KeyboardInterrupt):
            prerequisites._run_to_end(["apt-get", "install"], progress)
        self.assertTrue(popen.call_args.kwargs["start_new_session"])
        self.assertEqual(process.wait.call_count, 2)
        self.assertIn("waiting for apt-get", progress.lines[0])


if __name__ == "__main__":
    unittest.main()
