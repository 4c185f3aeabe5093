"""Tests which programs cargo builds, with which profile, and into which folder."""

from __future__ import annotations

import os
import tomllib
import unittest
from unittest import mock

from oci import binaries
from oci.__main__ import REPOSITORY, parse


class Profiles(unittest.TestCase):
    def test_images_are_built_for_users_by_default(self) -> None:
        self.assertEqual(parse([]).profile, "release")
        self.assertEqual(parse(["--debug"]).profile, "dev")
        self.assertEqual(parse(["--fast"]).profile, "fast")
        with self.assertRaises(SystemExit):
            parse(["--fast", "--debug"])

    def test_profiles_exist_and_have_separate_folders(self) -> None:
        manifest = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
        self.assertEqual(manifest["profile"]["fast"]["inherits"], "dev")
        self.assertEqual([binaries.folder_of(name) for name in ("dev", "fast", "release")], ["debug", "fast", "release"])

    def test_programs_are_in_the_folder_of_cargo(self) -> None:
        for folder, path in (("/elsewhere", "/elsewhere/debug/a"), ("", f"{REPOSITORY}/target/debug/a")):
            with mock.patch.dict(os.environ, {"CARGO_TARGET_DIR": folder}):
                self.assertEqual(str(binaries.program(REPOSITORY, "a", "dev")), path)

    def test_command_names_packages_or_builds_all_for_the_tests(self) -> None:
        command = binaries.build_command(["drydock-agent", "kubectl-drydock"], "fast")
        self.assertEqual(command, "cargo build --locked --profile fast -p drydock-agent -p drydock-cli".split())
        self.assertEqual(binaries.build_command(["drydock-agent"], "dev")[-2:], ["--workspace", "--all-targets"])


if __name__ == "__main__":
    unittest.main()
