"""A plain relay between the sockets of two pods, for migrations without Drydock: `python3 -m measure.relay FROM TO SOCKET...`.

    FROM/migration/libvirt.sock ──▶ TO/libvirt/libvirt-sock
    FROM/migration/memory.sock  ──▶ TO/migration/memory.sock
    FROM/migration/disks.sock   ──▶ TO/migration/disks.sock

The relay forwards the connections of the sockets that are named as arguments. It prints `listening` when it is ready, and exits
at the end of its standard input. Both pods are on this machine: there is no encryption and no network between them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

ROUTES = {
    "migration/libvirt.sock": "libvirt/libvirt-sock",
    "migration/memory.sock": "migration/memory.sock",
    "migration/disks.sock": "migration/disks.sock",
}
BUFFER = 256 * 1024


def listen(path: Path) -> socket.socket:
    """Return a listening socket at a path of any length, with the owner of its folder."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    try:
        server = socket.socket(socket.AF_UNIX)
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        server.listen()
        return server
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """Connect to a socket at a path of any length."""
    found = os.open(path, os.O_PATH)
    try:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(f"/proc/self/fd/{found}")
        except OSError:
            client.close()
            raise
        return client
    finally:
        os.close(found)


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy data until the end of the source, then shut down the target for writing."""
    buffer = memoryview(bytearray(BUFFER))
    with contextlib.suppress(OSError):
        while length := source.recv_into(buffer):
            target.sendall(buffer[:length])
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def carry(near: socket.socket, far: socket.socket) -> None:
    """Forward a connection in both directions until both have ended."""
    with near, far:
        other = threading.Thread(target=copy, args=(far, near), daemon=True)
        other.start()
        copy(near, far)
        other.join()


def serve(server: socket.socket, target: Path) -> None:
    """Forward each connection to `target`, until the server socket is closed."""
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        try:
            far = connect(target)
        except OSError as error:
            print(f"{target}: {error}", file=sys.stderr)
            near.close()
            continue
        threading.Thread(target=carry, args=(near, far), daemon=True).start()


def main(near: Path, far: Path, sockets: list[str]) -> None:
    """Relay until standard input ends."""
    for here in sockets:
        threading.Thread(target=serve, args=(listen(near / here), far / ROUTES[here]), daemon=True).start()
    print("listening", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
