"""Finds dependencies in crates' manifests that the crates' sources do not use."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath

# The tables of a manifest with dependencies of the program itself. Dependencies of its tests are in `dev-dependencies`.
TABLES = ("dependencies", "build-dependencies")

_LINE_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
# An inline test module. rustfmt places its closing brace at the start of a line.
_TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*mod \w+ \{\n.*?^\}$", re.MULTILINE | re.DOTALL)


def declared(manifest: str) -> dict[str, bool]:
    """Return the dependencies of the program in a manifest, including target-specific ones, and whether each is optional."""
    read = tomllib.loads(manifest)
    tables = [table.get(key, {}) for table in (read, *read.get("target", {}).values()) for key in TABLES]
    return {
        name: isinstance(how, dict) and how.get("optional", False)
        for table in tables
        for name, how in table.items()
    }


def unused(manifest: str, sources: Mapping[str, str], is_test: Callable[[str], bool]) -> list[str]:
    """Return the dependencies that no source of a crate mentions outside its tests.

    For an optional dependency, test sources count, too, since it may be for tests of other crates.
    """
    program = _names(text for path, text in sources.items() if not is_test(path))
    everything = _names(sources.values())
    return [
        name
        for name, is_optional in declared(manifest).items()
        if name.replace("-", "_") not in (everything if is_optional else program)
    ]


def _names(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"\w+", _LINE_COMMENT.sub("", _TESTS.sub("", text)))}


def unused_in_workspace(manifest: str, members: Iterable[str]) -> list[str]:
    """Return the dependencies in the workspace's manifest that no member declares."""
    tables = ("dependencies", "dev-dependencies", "build-dependencies")
    named: set[str] = set()
    for member in members:
        read = tomllib.loads(member)
        for table in (read, *read.get("target", {}).values()):
            named.update(name for key in tables for name in table.get(key, {}))
    return [name for name in tomllib.loads(manifest)["workspace"].get("dependencies", {}) if name not in named]


def of_crates(sources: Mapping[str, str], is_test: Callable[[str], bool]) -> list[str]:
    """Return all unused dependencies; `sources` maps the paths of all manifests and Rust sources to their texts."""
    manifests = {str(PurePosixPath(path).parent): text for path, text in sources.items() if path.endswith("/Cargo.toml")}
    found = [f"Cargo.toml: {name}" for name in unused_in_workspace(sources["Cargo.toml"], manifests.values())]
    for folder, manifest in manifests.items():
        inner = tuple(f"{other}/" for other in manifests if other.startswith(f"{folder}/"))
        own = {
            path.removeprefix(f"{folder}/"): text
            for path, text in sources.items()
            if path.endswith(".rs") and path.startswith(f"{folder}/") and not path.startswith(inner)
        }
        # In the crate `tests`, the tests are the program.
        found += [f"{folder}/Cargo.toml: {name}" for name in unused(manifest, own, is_test if folder != "tests" else lambda _: False)]
    return found
