"""Runs a command, shows its output line by line, and returns it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from embedded.progress import show

# Command prefix for Linux's idle scheduling policy: the command may wait for all other work. `chrt` is part of util-linux.
IDLE = ("chrt", "--idle", "0")

REPOSITORY = Path(__file__).resolve().parent.parent.parent

_running: set[subprocess.Popen[str]] = set()
_interrupted = threading.Event()


def run(
    argv: list[str],
    environment: Mapping[str, str] | None = None,
    quiet: bool = False,
    most_seconds: float | None = None,
    prefix: str = "",
    stamped: bool = False,
    folder: Path = REPOSITORY,
) -> tuple[str, int]:
    """Run `argv` in a folder of the repository; return its output, with stdout and stderr merged, and its exit code.

    After `most_seconds`, the command and its child processes are killed; the last line of the output reports that.
    `prefix` distinguishes the lines of commands that run in parallel. With `stamped`, each shown line begins with the seconds
    since the start of the command. After an interruption no thread can start a command: KeyboardInterrupt is raised.
    """
    if _interrupted.is_set():
        raise KeyboardInterrupt
    begun = time.monotonic()
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        _signal(process, signal.SIGKILL)

    timer = threading.Timer(most_seconds or 0, end)
    timer.daemon = True
    if most_seconds is not None:
        timer.start()
    lines: list[str] = []
    _running.add(process)
    if _interrupted.is_set():
        # The process started after the check above, so `interrupt` may not have signalled it.
        _signal(process, signal.SIGTERM)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            if not quiet:
                stamp = f"{time.monotonic() - begun:6.1f}s " if stamped else ""
                show(f"    {prefix}{stamp}{line.rstrip()}")
        code = process.wait()
    except KeyboardInterrupt:
        _signal(process, signal.SIGTERM)
        process.wait()
        raise
    finally:
        timer.cancel()
        process.stdout.close()
        _running.discard(process)
    if late.is_set():
        lines.append(f"\ntimeout after {most_seconds:.0f} s\n")
        show(f"    {prefix}timeout after {most_seconds:.0f} s")
    if quiet and code != 0:
        for line in lines[-60:]:
            show(f"    {line.rstrip()}")
    return "".join(lines), code


def interrupt() -> None:
    """Terminate the commands of all threads and prevent new ones: only the main thread receives an interruption."""
    _interrupted.set()
    for process in list(_running):
        _signal(process, signal.SIGTERM)


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to the process group of a command, if it still exists."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass
