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
# Programs that have another name than their package.
PACKAGES = {"kubectl-drydock": "drydock-cli"}


def target_folder(repository: Path) -> Path:
    """Return where cargo puts what it builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or repository / "target").absolute()


def named_by(recipes: Iterable[Path]) -> list[str]:
    """Return the programs that these Containerfiles copy."""
    found = {
        match
        for recipe in recipes
        for item in parse(recipe)
        if item.keyword == "COPY"
        for match in BINARY.findall(item.text)
    }
    return sorted(found)


def build(repository: Path, names: list[str], debug: bool, log: Path) -> None:
    """Let cargo build the programs; it knows itself what has not changed."""
    if not names:
        return
    try:
        prerequisites.ensure(("rust",), toolchains=("cargo",))
    except errors.Failure as failure:
        raise Failure(str(failure)) from failure
    command = ["cargo", "build", "--locked"]
    if debug:
        # As the tests are built, or else nearly all that both need would be built a second time.
        command += ["--workspace", "--all-targets"]
    else:
        command += ["--release", *(word for name in names for word in ("-p", PACKAGES.get(name, name)))]
    with step(f"cargo build {', '.join(names)}", long=True):
        run(command, log=log, what="cargo build", cwd=repository)
