"""Runs short system commands and reports their output on failure."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping

from .errors import Failure


def run(
    *argv: str,
    input: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = 120,
) -> str:
    """Run a command and return its output. Raise Failure if the command fails."""
    try:
        done = subprocess.run(
            argv,
            input=input,
            env=environment,
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise Failure(f"command not found: {argv[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(f"timed out after {timeout} s: {shlex.join(argv)}") from error
    if done.returncode != 0:
        printed = last_lines(done.stderr or done.stdout)
        raise Failure(f"failed with exit code {done.returncode}: {shlex.join(argv)}", printed)
    return done.stdout


def succeeds(*argv: str) -> bool:
    """Return whether a command exists and exits with code 0. Its output is discarded."""
    quiet = subprocess.DEVNULL
    try:
        return subprocess.run(argv, stdin=quiet, stdout=quiet, stderr=quiet).returncode == 0
    except FileNotFoundError:
        return False


def last_lines(text: str, count: int = 20) -> str:
    """Return the last lines of a command's output."""
    return "\n".join(text.rstrip().splitlines()[-count:])
