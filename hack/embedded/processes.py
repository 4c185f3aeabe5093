"""Starts, finds and stops daemons without an init system.

A process is identified by a pid file and by two marks in its environment: the
cluster's folder and the name of the part. If another process has reused the pid, it
lacks the marks, so no process is signalled by mistake. The new process writes the pid
file itself before it executes the program. If the caller crashes in between, no
unknown daemon is left behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import Failure

MARK_CLUSTER = "DRYDOCK_EMBEDDED"
MARK_PART = "DRYDOCK_PART"
MARK_DIGEST = "DRYDOCK_DIGEST"

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Go programs collect garbage a quarter as often as by default: on test machines, memory is less scarce than CPU time.
GARBAGE = {"GOGC": "400", "GOMEMLIMIT": "8GiB"}

# Shell script of the new process: write the pid file, then execute the program.
_ANNOUNCE = 'printf "%s\\n" "$$" > "$0.new" && mv "$0.new" "$0" && exec "$@"'


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; empty if the process has ended or is a zombie."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def settled_environment(pid: int) -> dict[str, str]:
    """Return the environment of a process that may be executing another program right now.

    At that moment, the environment of a living process reads as empty.
    """
    deadline = time.monotonic() + 0.5
    while True:
        environment = read_environment(pid)
        if environment or not _alive(pid) or time.monotonic() > deadline:
            return environment
        time.sleep(0.002)


def children(pid: int) -> list[int]:
    """Return the direct children of a process's main thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def all_pids() -> list[int]:
    """Return the pids of all processes that are visible to this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parse_pid(text: str) -> int | None:
    """Return the pid in the text of a pid file, or None if there is no valid one."""
    text = text.strip()
    return int(text) if text.isdigit() and int(text) > 1 else None


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@dataclass(frozen=True)
class Process:
    """A daemon of a cluster: how to start it, and where its pid file and its log are.

    `wrapper` is a command that enters a node's namespaces and remains the parent of
    the program. The pid file then has the wrapper's pid, and the program is its only
    child. `becomes` is the name of the program that `argv` later replaces itself with.
    """

    part: str
    argv: Sequence[str]
    cluster: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    wrapper: Sequence[str] = ()
    configuration: Sequence[Path] = ()
    becomes: str = ""

    @property
    def pid_file(self) -> Path:
        return self.cluster / "run" / f"{self.part}.pid"

    @property
    def log(self) -> Path:
        return self.cluster / "logs" / f"{self.part}.log"

    def digest(self) -> str:
        """Return a digest that changes whenever a change requires a restart."""
        summary = hashlib.sha256()
        summary.update(json.dumps([list(self.argv), sorted(self.environment.items())]).encode())
        for path in self.configuration:
            summary.update(path.read_bytes())
        return summary.hexdigest()[:16]

    def is_mine(self, environment: Mapping[str, str]) -> bool:
        return (
            environment.get(MARK_CLUSTER) == str(self.cluster)
            and environment.get(MARK_PART) == self.part
        )

    def tracked_pid(self) -> int | None:
        """Return the pid in the pid file if that process is alive and is this daemon, otherwise None."""
        try:
            pid = parse_pid(self.pid_file.read_text())
        except OSError:
            return None
        if pid is None or not self.is_mine(settled_environment(pid)):
            return None
        return pid

    def pid(self) -> int | None:
        """Return the program's own pid in the host's PID namespace, or None if it is not running."""
        tracked = self.tracked_pid()
        if tracked is None or not self.wrapper:
            return tracked
        # Until it executes the wrapper, the process is a shell, whose child is not the program.
        if _announces(tracked):
            return None
        below = children(tracked)
        return below[0] if below else None

    def is_running(self) -> bool:
        """Return whether the process is alive, even if its wrapper has not started the program yet."""
        return self.tracked_pid() is not None

    def is_current(self) -> bool:
        """Return whether the process is running with the current command line and configuration."""
        tracked = self.tracked_pid()
        if tracked is None:
            return False
        return settled_environment(tracked).get(MARK_DIGEST) == self.digest()

    def start(self) -> None:
        """Start the program, detached from this process. The caller ensures that it is not running."""
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": SYSTEM_PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            **self.environment,
            MARK_CLUSTER: str(self.cluster),
            MARK_PART: self.part,
            MARK_DIGEST: self.digest(),
        }
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _ANNOUNCE, str(self.pid_file), *self.wrapper, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
                umask=0o022,
            )
        # Wait for the pid file, by which `is_running` finds the process, and for the program, by whose name `strays` finds it.
        deadline = time.monotonic() + 10
        while self.tracked_pid() != child.pid or _announces(child.pid):
            if child.poll() is not None:
                raise self.death()
            if time.monotonic() > deadline:
                raise Failure(f"{self.part} wrote no pid file within 10 s", self.last_lines())
            time.sleep(0.005)

    def ensure(self) -> bool:
        """Start the program unless it already runs with the current configuration. Return whether it was started."""
        if self.is_current():
            return False
        self.stop()
        for pid in self.strays():
            send(pid, signal.SIGKILL)
        self.start()
        return True

    def strays(self) -> list[int]:
        """Return the processes of this part. Call this only while the pid file has no valid pid.

        Children inherit the marks, and containerd's shims must outlive containerd. So
        this returns only processes that run the part's own program.
        """
        mine = {pid for pid in all_pids() if self.is_mine(read_environment(pid))}
        program = self.becomes or os.path.basename(self.argv[0])
        return [pid for pid in mine if command_name(pid) == program]

    def stop(self, number: int = signal.SIGTERM, patience: float = 15.0) -> None:
        """Send a signal to the program and wait until it ends. Kill it if it does not end within `patience` seconds."""
        tracked = self.tracked_pid()
        if tracked is None:
            self.pid_file.unlink(missing_ok=True)
            return
        program = self.pid()
        send(program if program is not None else tracked, number)
        if not _gone([tracked], patience):
            for pid in (program, tracked):
                if pid is not None:
                    send(pid, signal.SIGKILL)
            if not _gone([tracked], patience):
                raise Failure(f"{self.part} (pid {tracked}) survives SIGKILL", self.last_lines())
        self.pid_file.unlink(missing_ok=True)

    def last_lines(self, count: int = 15) -> str:
        """Return the last lines of the log, for error messages."""
        try:
            text = self.log.read_bytes()[-16384:].decode(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-count:])

    def death(self) -> Failure:
        return Failure(f"{self.part} died; the last lines of {self.log}:", self.last_lines())


def command_line(pid: int) -> list[str]:
    """Return the program and the arguments of a process; empty if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0")
    except OSError:
        return []
    return text.split("\0") if text else []


def command_name(pid: int) -> str:
    """Return the base name of the first word of a process's command line."""
    return os.path.basename(next(iter(command_line(pid)), ""))


def _announces(pid: int) -> bool:
    """Return whether a process is still the shell that writes the pid file."""
    try:
        return _ANNOUNCE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def of_cluster(cluster: Path) -> list[int]:
    """Return the pids of all living processes with a cluster's mark, including children."""
    wanted = str(cluster)
    return [pid for pid in all_pids() if read_environment(pid).get(MARK_CLUSTER) == wanted]


def kill_all(pids: Iterable[int], patience: float = 20.0) -> None:
    """Kill processes and wait until they have ended. Raise Failure after `patience` seconds."""
    pids = list(pids)
    for pid in pids:
        send(pid, signal.SIGKILL)
    if not _gone(pids, patience):
        left = [pid for pid in pids if _alive(pid)]
        raise Failure(f"processes {left} survive SIGKILL")


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    # The main thread may be dead while other threads still hold the process's sockets.
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X") or len(threads) > 1


def _gone(pids: Sequence[int], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
