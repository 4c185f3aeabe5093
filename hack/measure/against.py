"""The same benchmark of an earlier commit, by that commit's own scripts, for comparison in the same run."""

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
    """What `hack/bench` of a commit measures, as the reference of what was measured now; the others as they are."""
    whole = _whole(commit)
    tree = source(whole, progress)
    target = folder_of(whole) / "target"
    argv = [str(tree / "hack" / "bench"), *arguments]
    with progress.step(f"hack/bench {' '.join(arguments)} of {whole[:7]}", announce=True):
        printed = output_of(argv, tree, {**os.environ, "CARGO_TARGET_DIR": str(target)})
    yield from compared(whole[:7], printed.splitlines(), now)


def output_of(argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """What a command printed on standard output. Its exit code is ignored: it reports whether a benchmark keeps its budgets.

    If this process is interrupted, the command is terminated and its clean-up awaited, since only the command knows which
    cluster it made.
    """
    with subprocess.Popen(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:
            process.terminate()
            # `communicate` would wait for what the command left behind, which may hold the pipe.
            process.wait()
            raise
    return printed


def compared(commit: str, lines: Sequence[str], now: Sequence[Measurement]) -> Iterator[Measurement]:
    """The present figures with those of a commit as their reference."""
    earlier = [json.loads(line) for line in lines if line.startswith("{")]
    if not earlier:
        raise Failure(f"the benchmark of {commit} printed no figure; see above")
    known = {figure.name: figure for figure in now}
    for line in earlier:
        figure = known.get(line["name"])
        if figure is not None:
            yield Measurement(f"{figure.name}: beside {commit}", figure.value, figure.unit, line["value"], None, least=figure.least)


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
