"""socat between two Unix sockets of this machine, with or without TLS: the baseline for the tunnel.

    entrance ─unix─▶ socat ─TCP on the loopback─▶ socat ─unix─▶ exit
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import Failure

from .api import PATIENCE

# -b: the same buffer size as the tunnel. -t: how long to wait for the rest of the data after one side has ended.
PROGRAM = ("socat", "-b", "65536", "-t", str(PATIENCE))


@dataclass(frozen=True)
class Transport:
    """socat's addresses of both ends, with a placeholder for the port."""

    listens: str
    dials: str


TCP = Transport("TCP-LISTEN:%d,bind=127.0.0.1,nodelay", "TCP:127.0.0.1:%d,nodelay")


def tls(folder: Path) -> Transport:
    """Return TLS 1.3 with mutual authentication; creates the certificate, which both ends use, in `folder`."""
    certificate, public = folder / "certificate.pem", folder / "public.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"]
    made += ["-subj", "/CN=bench", "-keyout", str(certificate), "-out", str(public)]
    subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
    with certificate.open("a") as file:
        file.write(public.read_text())
    options = f"nodelay,cert={certificate},cafile={public},verify=1,openssl-min-proto-version=TLS1.3"
    return Transport(f"OPENSSL-LISTEN:%d,bind=127.0.0.1,{options}", f"OPENSSL:127.0.0.1:%d,commonname=bench,{options}")


@contextlib.contextmanager
def carrying(entrance: Path, leads_to: Path, transport: Transport, many: bool = False) -> Iterator[tuple[int, int]]:
    """Run two processes that forward connections from one socket to the other: a single connection, or all with `many`.

    Yields the two pids. The socket `entrance` gets the owner of its folder. Both paths must fit into a socket address.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    entrance.unlink(missing_ok=True)
    owner = entrance.parent.stat()
    fork = ",fork" if many else ""
    ends = (
        (transport.listens % port + fork, f"UNIX-CONNECT:{leads_to}", lambda: _listens(port)),
        (f"UNIX-LISTEN:{entrance},user={owner.st_uid},group={owner.st_gid}{fork}", transport.dials % port, entrance.exists),
    )
    with contextlib.ExitStack() as stack:
        pids = []
        for near, far, listening in ends:
            process = subprocess.Popen([*PROGRAM, near, far], stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
            while not listening():
                if process.poll() is not None:
                    raise Failure(f"socat ended with {process.returncode}: {near}")
                time.sleep(0.02)
        yield pids[0], pids[1]


def _listens(port: int) -> bool:
    """Return whether a process listens on a loopback port. A test connection would use up the single connection."""
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in table)
