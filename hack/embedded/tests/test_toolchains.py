"""Tests toolchains that are present, missing or too old."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from embedded import toolchains
from embedded.errors import Failure


class Versions(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, {"PATH": str(self.folder)}))

    def program(self, name: str, script: str) -> None:
        """Create a program on the PATH that runs this script."""
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def test_version_that_is_too_old_is_named_with_the_needed_one(self) -> None:
        for name, printed, expected in (
            ("go", "go1.19.8", r"go\) on the PATH has version 1\.19\.8; version 1\.21 or newer"),
            ("go", "", r"version unknown; version 1\.21 or newer"),
            ("go", "go1.9", r"version 1\.9;"),
            ("cargo", "cargo 1.65.0 (4bc8f24d3 2022-10-20)", r"cargo\) .* version 1\.65\.0; version 1\.\d+ or newer"),
            ("python3", "Python 3.9.2", r"version 3\.9\.2; version 3\.11 or newer"),
        ):
            with self.subTest(name=name, printed=printed):
                self.program(name, f"echo '{printed}'")
                with self.assertRaisesRegex(Failure, expected):
                    toolchains.check([name])

    def test_version_that_is_new_enough_passes(self) -> None:
        needed = toolchains.known()["cargo"].least
        for name, printed in (
            ("go", "go1.21"),
            ("go", "go1.26.8"),
            ("go", "devel go1.24-5a2f4e3 linux/amd64"),
            ("cargo", f"cargo {needed}.0 (f2d3ce0bd 2026-03-21)"),
            ("cargo", "cargo 2.0.0-nightly"),
            ("python3", "Python 3.11.2"),
        ):
            with self.subTest(name=name, printed=printed):
                self.program(name, f"echo '{printed}'")
                toolchains.check([name])

    def test_rustup_chooses_the_version_of_the_repository(self) -> None:
        self.program("cargo", '[ -e rust-toolchain.toml ] && echo "cargo 1.99.0" || echo "cargo 1.65.0"')
        toolchains.check(["cargo"])

    def test_missing_or_broken_program_is_named(self) -> None:
        with self.assertRaisesRegex(Failure, r"\(go\) is not on the PATH; version 1\.21 or newer is needed"):
            toolchains.check(["go"])
        self.program("go", "exit 2")
        with self.assertRaisesRegex(Failure, "go env GOVERSION failed with exit code 2; see above"):
            toolchains.check(["go"])


if __name__ == "__main__":
    unittest.main()
