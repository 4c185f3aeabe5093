"""Reports build steps and their durations, and runs commands with their output in log files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TAIL_LINES = 25


class Failure(Exception):
    """An error with a cause that the user can act on."""


def note(text: str) -> None:
    """Print a line and flush it, so that it appears immediately even in a pipe."""
    print(text, flush=True)


@contextlib.contextmanager
def step(text: str, long: bool = False) -> Iterator[None]:
    """Announce a part of the work, and report its duration when it ends.

    If the output is not a terminal, announce it only if it is `long`: it may take minutes.
    """
    terminal = sys.stdout.isatty()
    if terminal:
        print(f"        {text} ...", end="\r", flush=True)
    elif long:
        note(f"        {text} ...")
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        note(f"{time.monotonic() - begin:6.1f}s {text}: failed")
        raise
    clear = "\033[K" if terminal else ""
    note(f"{time.monotonic() - begin:6.1f}s {text}{clear}")


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log file, indented for a message."""
    with contextlib.suppress(OSError):
        text = log.read_text(errors="replace").rstrip()
        return "\n".join("    " + line for line in text.splitlines()[-lines:])
    return "    (no output)"


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    log: Path,
    what: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> None:
    """Run a command with its output in `log`; if it fails, raise Failure with the last lines of the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                [os.fspath(part) for part in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                input=None if stdin is None else stdin.encode(),
                stdin=subprocess.DEVNULL if stdin is None else None,
                check=False,
            )
        except FileNotFoundError as error:
            raise Failure(f"{what}: the command {command[0]} is not installed") from error
    if done.returncode:
        raise Failure(f"{what} failed with status {done.returncode}; log {log} ends with:\n{tail(log)}")


def size(count: int) -> str:
    """Format a number of bytes in KiB or MiB."""
    if count < 1 << 20:
        return f"{count / (1 << 10):.0f} KiB"
    return f"{count / (1 << 20):.1f} MiB"
