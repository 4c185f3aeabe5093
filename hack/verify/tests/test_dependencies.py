"""Unused dependencies."""

import unittest

from verify.dependencies import of_crates, unused, unused_in_workspace

MANIFEST = """
[dependencies]
anyhow.workspace = true
serde-json = "1"
tower-test = { version = "1", optional = true }

[target.'cfg(unix)'.dependencies]
nix = "1"

[dev-dependencies]
tempfile = "3"
"""


class Unused(unittest.TestCase):
    def unused(self, **sources: str) -> list[str]:
        return unused(MANIFEST, sources, lambda path: path == "tests")

    def test_each_dependency_has_to_be_mentioned_outside_tests(self) -> None:
        code = "use anyhow::Context;\nfn f() { serde_json::from_str(nix::x()) }\n"
        self.assertEqual(self.unused(lib=code, fake="use tower_test::mock;\n"), [])
        self.assertEqual(self.unused(lib="// serde_json, nix\n", tests=code), ["anyhow", "serde-json", "tower-test", "nix"])

    def test_tests_inside_a_module_are_none_of_the_program(self) -> None:
        tests = "#[cfg(test)]\n#[expect(clippy::unwrap_used)]\nmod tests {\n    use anyhow::Result;\n    mod a {\n    }\n}\n"
        code = "use serde_json as _; use nix as _; use tower_test as _;\n"
        self.assertEqual(self.unused(lib=code + tests), ["anyhow"])
        self.assertEqual(self.unused(lib=code + tests + "use anyhow::Context;\n"), [])

    def test_optional_ones_may_be_for_tests(self) -> None:
        code = "use anyhow::Context; use serde_json as _; use nix as _;\n"
        self.assertEqual(self.unused(lib=code, tests="use tower_test::mock;\n"), [])

    def test_workspace_has_the_dependencies_of_all_crates(self) -> None:
        workspace = '[workspace.dependencies]\nanyhow = "1"\nnix = "1"\ntempfile = "3"\nvirt = "1"\n'
        self.assertEqual(unused_in_workspace(workspace, [MANIFEST]), ["virt"])

    def test_sources_are_those_of_the_innermost_crate(self) -> None:
        sources = {
            "Cargo.toml": "[workspace]\n",
            "agent/Cargo.toml": '[dependencies]\nnix = "1"\n',
            "agent/src/lib.rs": "",
            "agent/host/Cargo.toml": '[dependencies]\nnix = "1"\n',
            "agent/host/src/lib.rs": "use nix::x;\n",
        }
        self.assertEqual(of_crates(sources, lambda _: False), ["agent/Cargo.toml: nix"])


if __name__ == "__main__":
    unittest.main()
