"""Two tunnels on this machine with a session between them, set up as agents do; see agent/src/tunnel/local.rs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedded.errors import Failure

# UID of the launcher, which owns the sockets in a pod's folder.
LAUNCHER = 107


class Tunnel:
    """A process of `drydock-agent tunnel`, and the folder of one pod on its node."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.owner, self.pod = str(uuid.uuid4()), str(uuid.uuid4())
        self.run = folder / "kubelet" / "pods" / self.pod / "volumes" / "kubernetes.io~empty-dir" / "run"
        for name in ("migration", "libvirt"):
            (self.run / name).mkdir(parents=True)
            os.chown(self.run / name, LAUNCHER, LAUNCHER)
        self._sockets = folder / "sockets"
        self._sockets.mkdir()
        self._log = (folder / "log").open("w+")
        argv = [str(program), "tunnel", "--kubelet-dir", str(folder / "kubelet"), "--pod-uid", self.owner]
        argv += ["--advertise-address", "127.0.0.1", "--port", "0", "--metrics-bind-address", "127.0.0.1:0", "--socket-dir", str(self._sockets)]
        self.process = subprocess.Popen(argv, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        self._connection: socket.socket | None = None

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Send a call to the tunnel, and return its result; fail if the tunnel refuses the call."""
        if self._connection is None:
            self._connection = self._connect()
        self._connection.sendall(json.dumps({"id": 1, "call": call}).encode() + b"\n")
        for line in self._lines:
            printed = json.loads(line)
            if "answer" in printed:
                result: dict[str, Any] = printed["answer"]["result"]
                if "refused" in result:
                    raise Failure(f"the tunnel refuses {next(iter(call))}", result["refused"]["message"])
                return result
        raise Failure("the tunnel has ended", self._printed())

    def end(self) -> None:
        """Close the connection and kill the process."""
        if self._connection is not None:
            self._lines.close()
            self._connection.close()
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _connect(self) -> socket.socket:
        path = self._sockets / f"{self.owner}.sock"
        while self.process.poll() is None:
            connection = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(str(path))
                self._lines = connection.makefile("r")
                return connection
            connection.close()
            # The tunnel does not listen yet. The loop ends if its process exits.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
        raise Failure("a tunnel did not start", self._printed())

    def _printed(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]


@contextlib.contextmanager
def session(program: Path, folder: Path) -> Iterator[tuple[Tunnel, Tunnel]]:
    """Run the source's and the target's tunnel with the session of a migration between them."""
    migration = str(uuid.uuid4())
    made: list[Tunnel] = []
    try:
        for role in ("source", "target"):
            (folder / role).mkdir()
            made.append(Tunnel(program, folder / role))
        prepared = [
            tunnel.call({"prepare": {"migration": migration, "role": role, "podUid": tunnel.pod, "domain": "default_vm"}})
            for role, tunnel in zip(("source", "target"), made)
        ]
        # Pair the target first, because the source connects as soon as it knows its peer.
        for tunnel, other in zip(reversed(made), prepared):
            tunnel.call({"pair": {"migration": migration, "peer": other["prepared"]}})
        yield made[0], made[1]
    finally:
        for tunnel in made:
            tunnel.end()
