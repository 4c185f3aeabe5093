"""Runs a command, shows what it says as it says it, and keeps it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def run(argv: list[str], environment: Mapping[str, str] | None = None, quiet: bool = False) -> tuple[str, int]:
    """Run `argv` in the repository; return its output, both streams in one, and its exit code."""
    process = subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            if not quiet:
                print(f"    {line.rstrip()}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    code = process.wait()
    if quiet and code != 0:
        for line in lines[-60:]:
            print(f"    {line.rstrip()}", file=sys.stderr)
    return "".join(lines), code
