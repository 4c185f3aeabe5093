"""Builds the Rust programs that the Containerfiles copy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from embedded import errors, prerequisites
from oci.containerfile import parse
from oci.progress import Failure, run, step

BINARY = re.compile(r"\btarget/\S+/(kubectl-drydock|drydock-[a-z-]+)")
# Cargo profiles whose folder has a different name.
_FOLDERS = {"dev": "debug"}
# Programs whose package has a different name.
PACKAGES = {"kubectl-drydock": "drydock-cli"}


def target_folder(repository: Path) -> Path:
    """Return the path of cargo's target folder."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or repository / "target").absolute()


def folder_of(profile: str) -> str:
    """Return the name of the folder for programs that cargo builds with a profile."""
    return _FOLDERS.get(profile, profile)


def program(repository: Path, name: str, profile: str) -> Path:
    """Return the path of a program that cargo builds with this profile."""
    return target_folder(repository) / folder_of(profile) / name


def named_by(recipes: Iterable[Path]) -> list[str]:
    """Return the names of the programs that these Containerfiles copy, sorted."""
    found = {
        match
        for recipe in recipes
        for item in parse(recipe)
        if item.keyword == "COPY"
        for match in BINARY.findall(item.text)
    }
    return sorted(found)


def build_command(names: Iterable[str], profile: str) -> list[str]:
    """Return the command that builds these programs with a profile of Cargo.toml."""
    command = ["cargo", "build", "--locked", "--profile", profile]
    if profile == "dev":
        # The targets that the tests build. Otherwise cargo would build nearly all common code a second time.
        return [*command, "--workspace", "--all-targets"]
    return [*command, *(word for name in names for word in ("-p", PACKAGES.get(name, name)))]


def build(repository: Path, names: list[str], profile: str, log: Path) -> None:
    """Build the programs with cargo, which skips unchanged crates."""
    if not names:
        return
    try:
        prerequisites.ensure(("rust",), toolchains=("cargo",))
    except errors.Failure as failure:
        raise Failure(str(failure)) from failure
    with step(f"cargo build {', '.join(names)}", long=True):
        run(build_command(names, profile), log=log, what="cargo build", cwd=repository)
