"""Comparison with an earlier commit: runs the same benchmark with that commit's scripts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from embedded.errors import Failure
from embedded.progress import Progress
from verify.previous import folder_of, source

from .measurement import Measurement


def measured(commit: str, arguments: Sequence[str], now: Sequence[Measurement], progress: Progress) -> Iterator[Measurement]:
    """Run `hack/bench` of a commit, and yield the figures in `now` with that commit's values as their references.

    Figures that the commit does not measure are omitted.
    """
    whole = _whole(commit)
    tree = source(whole, progress)
    target = folder_of(whole) / "target"
    argv = [str(tree / "hack" / "bench"), *arguments]
    with progress.step(f"hack/bench {' '.join(arguments)} of {whole[:7]}", announce=True):
        printed = output_of(argv, tree, {**os.environ, "CARGO_TARGET_DIR": str(target)})
    yield from compared(whole[:7], printed.splitlines(), now)


def output_of(argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command and return its standard output. The exit code, which depends on the budgets, is ignored.

    If this process is interrupted, it terminates the command and waits until it has cleaned up, because only the command
    knows which cluster it created.
    """
    with subprocess.Popen(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:
            process.terminate()
            # `communicate` would also wait for remaining children of the command that hold the pipe open.
            process.wait()
            raise
    return printed


def compared(commit: str, lines: Sequence[str], now: Sequence[Measurement]) -> Iterator[Measurement]:
    """Yield the current figures that the commit has printed, too, with the commit's values as their references."""
    earlier = [json.loads(line) for line in lines if line.startswith("{")]
    if not earlier:
        raise Failure(f"the benchmark of {commit} printed no figure; see above")
    known = {figure.name: figure for figure in now}
    for line in earlier:
        figure = known.get(line["name"])
        if figure is not None:
            yield Measurement(f"{figure.name}: beside {commit}", figure.value, figure.unit, line["value"], None, least=figure.least)


def _whole(commit: str, folder: Path | None = None) -> str:
    """Return the full hash of a commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        cwd=folder or Path(__file__).resolve().parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise Failure(f"commit {commit} is not in the history of this clone")
    return done.stdout.strip()
