"""What can be told without running anything."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from embedded.progress import Progress

from . import removal
from .outcome import Outcome
from .runner import REPOSITORY
from .runner import run as command

CRATES = (
    "drydock-api",
    "drydock-core",
    "drydock-runtime",
    "drydock-host",
    "drydock-launcher",
    "drydock-controller",
    "drydock-agent",
    "drydock-tests",
)

DENY_VERSION = "0.20.2"


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Formatting, lints, each crate alone, dependencies."""
    outcome = Outcome()
    checks = {
        "cargo fmt": ["cargo", "fmt", "--all", "--check"],
        "cargo clippy": ["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        # A crate that leans on what another one switched on in a shared dependency fails here.
        **{f"{crate} alone": ["cargo", "check", "--locked", "-p", crate] for crate in CRATES},
    }
    for name, argv in checks.items():
        with progress.step(name):
            _, code = command(argv, quiet=True)
        _count(outcome, name, code == 0)
    with progress.step("cargo fetch"):
        # Building fetches what this platform needs; what is checked is all that any platform does.
        _, code = command(["cargo", "fetch", "--locked"], quiet=True)
    _count(outcome, "cargo fetch", code == 0)
    with progress.step("cargo deny"):
        _, code = command([str(_deny(progress)), "--offline", "--locked", "check", "bans", "licenses", "sources"], quiet=True)
    _count(outcome, "cargo deny", code == 0)
    for name, found in {**_strangers(), **_missing_tests()}.items():
        for line in found:
            progress.say(f"  {line}")
        _count(outcome, name, not found)
    return outcome


def _count(outcome: Outcome, name: str, good: bool) -> None:
    if good:
        outcome.passed += 1
    else:
        outcome.failed.append(name)


def _deny(progress: Progress) -> Path:
    """cargo-deny, from cargo's own folder or built once into the cache."""
    cache = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock"))
    root = cache / f"cargo-deny-{DENY_VERSION}"
    program = root / "bin" / "cargo-deny"
    if not program.exists():
        with progress.step(f"building cargo-deny {DENY_VERSION}", announce=True):
            command(
                ["cargo", "install", "--locked", "--root", str(root), "--version", DENY_VERSION, "cargo-deny"],
                # Speed of the build matters here, not that of the program.
                {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "1", "CARGO_PROFILE_RELEASE_LTO": "off"},
                quiet=True,
            )
    return program


def missing_tests(text: str, known: set[str]) -> list[str]:
    """Tests that a table of a document names and that do not exist: by their whole name, or by its beginning and `_…`."""
    missing = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        for name, cut in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)(_…)?`", line):
            # What has fewer words is a field or a folder.
            if cut and not any(one.startswith(f"{name}_") for one in known):
                missing.append(name)
            elif not cut and name.count("_") > 3 and name not in known:
                missing.append(name)
    return missing


def _missing_tests() -> dict[str, list[str]]:
    known = {name for name, _ in removal.TESTS}
    for file in REPOSITORY.rglob("*.rs"):
        if "target" not in file.relative_to(REPOSITORY).parts:
            known.update(re.findall(r"\bfn ([a-z0-9_]+)", file.read_text(errors="replace")))
    found = []
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "tests").glob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]
    for name in (str(page.relative_to(REPOSITORY)) for page in sorted(pages)):
        found += [f"{name}: {test}" for test in missing_tests((REPOSITORY / name).read_text(), known)]
    return {"tests that documents name exist": found}


def _strangers() -> dict[str, list[str]]:
    """Things that do not belong into the repository, by what is wrong with them."""
    tracked, _ = command(["git", "ls-files"], quiet=True)
    files = [REPOSITORY / name for name in tracked.split() if (REPOSITORY / name).is_file()]
    vague = re.compile(r"(^|/)(util|utils|common|helpers|misc)(\.rs|\.py|/)")
    unfinished = re.compile(r"\b(todo!|unimplemented!|TO" r"DO|FIX" r"ME)\b")
    found: dict[str, list[str]] = {"modules are named for what they do": [], "nothing is left unfinished": []}
    for file in files:
        name = str(file.relative_to(REPOSITORY))
        if vague.search(name):
            found["modules are named for what they do"].append(name)
        if file.suffix in (".rs", ".py", ".sh", ".yaml"):
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
                if unfinished.search(line):
                    found["nothing is left unfinished"].append(f"{name}:{number}: {line.strip()}")
    return found
