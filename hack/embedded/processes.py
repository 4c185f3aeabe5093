"""Daemons without an init system: started once, found again, stopped by pid.

A process is known by two marks in its environment, the cluster's folder and its
own name, next to a pid file. A pid that was reused by something else lacks the
marks, so nothing is ever signalled by mistake. The pid file is written by the
new process itself before it becomes the program: a crash of the caller in
between leaves no unknown daemon behind.
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

# Programs in Go collect garbage a quarter as often as by default: a machine for tests has more memory than processors.
GARBAGE = {"GOGC": "400", "GOMEMLIMIT": "8GiB"}

# Runs in the new process: leave the pid, then become the program.
_ANNOUNCE = 'printf "%s\\n" "$$" > "$0.new" && mv "$0.new" "$0" && exec "$@"'


def read_environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty if it is gone or a zombie."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def settled_environment(pid: int) -> dict[str, str]:
    """The environment of a process that may be turning into another program just now.

    For that moment a living process shows none.
    """
    deadline = time.monotonic() + 0.5
    while True:
        environment = read_environment(pid)
        if environment or not _alive(pid) or time.monotonic() > deadline:
            return environment
        time.sleep(0.002)


def children(pid: int) -> list[int]:
    """The direct children of a process's main thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def all_pids() -> list[int]:
    """Every process this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parse_pid(text: str) -> int | None:
    """The pid in a pid file, if it holds one."""
    text = text.strip()
    return int(text) if text.isdigit() and int(text) > 1 else None


def send(pid: int, number: int) -> None:
    """Signal a process that may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@dataclass(frozen=True)
class Process:
    """One daemon of a cluster: how it is started and where it leaves its traces.

    `wrapper` enters a node's namespaces and stays as the parent of the program:
    it is what the pid file names, and the program is its only child. `becomes`
    names the program that the first one turns into by itself.
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
        """Changes whenever a restart is needed to apply what changed."""
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
        """The pid in the pid file, if that process lives and is this one."""
        try:
            pid = parse_pid(self.pid_file.read_text())
        except OSError:
            return None
        if pid is None or not self.is_mine(settled_environment(pid)):
            return None
        return pid

    def pid(self) -> int | None:
        """The program's own pid, as the host sees it."""
        tracked = self.tracked_pid()
        if tracked is None or not self.wrapper:
            return tracked
        # Before it becomes the wrapper, the process is a shell, whose child is not the program either.
        if _announces(tracked):
            return None
        below = children(tracked)
        return below[0] if below else None

    def is_running(self) -> bool:
        """Whether it lives, if only as a wrapper that has yet to start the program."""
        return self.tracked_pid() is not None

    def is_current(self) -> bool:
        """Running, and started from the same command line and configuration."""
        tracked = self.tracked_pid()
        if tracked is None:
            return False
        return settled_environment(tracked).get(MARK_DIGEST) == self.digest()

    def start(self) -> None:
        """Start the program, detached from this one. The caller made sure it is not running."""
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
        # The pid file must be there before anyone checks whether it runs, and the program, by whose name a stray is known.
        deadline = time.monotonic() + 10
        while self.tracked_pid() != child.pid or _announces(child.pid):
            if child.poll() is not None:
                raise self.death()
            if time.monotonic() > deadline:
                raise Failure(f"{self.part} left no pid file within 10 s", self.last_lines())
            time.sleep(0.005)

    def ensure(self) -> bool:
        """Start the program unless it already runs as it should; True if it was started."""
        if self.is_current():
            return False
        self.stop()
        for pid in self.strays():
            send(pid, signal.SIGKILL)
        self.start()
        return True

    def strays(self) -> list[int]:
        """Return the processes of this part; for use while the pid file names none.

        Children inherit the marks (containerd's shims must outlive it), so only
        those count that run the part's own program.
        """
        mine = {pid for pid in all_pids() if self.is_mine(read_environment(pid))}
        program = self.becomes or os.path.basename(self.argv[0])
        return [pid for pid in mine if command_name(pid) == program]

    def stop(self, number: int = signal.SIGTERM, patience: float = 15.0) -> None:
        """Signal the program, wait for its end, and kill it if it will not go."""
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
        """The end of the log, for error messages."""
        try:
            text = self.log.read_bytes()[-16384:].decode(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-count:])

    def death(self) -> Failure:
        return Failure(f"{self.part} died; its last words in {self.log}:", self.last_lines())


def command_line(pid: int) -> list[str]:
    """The program and the arguments of a process; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0")
    except OSError:
        return []
    return text.split("\0") if text else []


def command_name(pid: int) -> str:
    """The base name of a process's first argument."""
    return os.path.basename(next(iter(command_line(pid)), ""))


def _announces(pid: int) -> bool:
    """Whether a process is still the shell that leaves the pid."""
    try:
        return _ANNOUNCE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def of_cluster(cluster: Path) -> list[int]:
    """Every living process that carries a cluster's mark, children included."""
    wanted = str(cluster)
    return [pid for pid in all_pids() if read_environment(pid).get(MARK_CLUSTER) == wanted]


def kill_all(pids: Iterable[int], patience: float = 20.0) -> None:
    """End processes at once and see them gone."""
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
    # The first thread may be dead while others still hold the process's sockets.
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X") or len(threads) > 1


def _gone(pids: Sequence[int], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
