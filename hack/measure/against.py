"""The same benchmark of an earlier commit, by that commit's own scripts, for comparison in the same run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from embedded.errors import Failure
from embedded.progress import Progress
from verify.previous import folder_of, source

from .figure import Figure


def measured(commit: str, arguments: Sequence[str], now: Sequence[Figure], progress: Progress) -> Iterator[Figure]:
    """What `hack/bench` of a commit measures, as the reference of what was measured now; the others as they are."""
    whole = _whole(commit)
    tree = source(whole, progress)
    target = folder_of(whole) / "target"
    argv = [str(tree / "hack" / "bench"), *arguments]
    with progress.step(f"hack/bench {' '.join(arguments)} of {whole[:7]}", announce=True):
        # Its exit code reports whether it keeps its own budgets.
        done = subprocess.run(
            argv,
            cwd=tree,
            env={**os.environ, "CARGO_TARGET_DIR": str(target)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
    yield from compared(whole[:7], done.stdout.splitlines(), now)


def compared(commit: str, lines: Sequence[str], now: Sequence[Figure]) -> Iterator[Figure]:
    """The present figures with those of a commit as their reference."""
    earlier = [json.loads(line) for line in lines if line.startswith("{")]
    if not earlier:
        raise Failure(f"the benchmark of {commit} printed no figure; see above")
    known = {figure.name: figure for figure in now}
    for line in earlier:
        figure = known.get(line["name"])
        if figure is not None:
            yield Figure(f"{figure.name}: beside {commit}", figure.value, figure.unit, line["value"], None, least=figure.least)


def _whole(commit: str, folder: Path | None = None) -> str:
    """All forty digits of a commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        cwd=folder or Path(__file__).resolve().parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise Failure(f"commit {commit} is not in the history of this clone")
    return done.stdout.strip()
