"""Client of the streams of KubeVirt's subresources API: bytes in binary messages of a WebSocket (RFC 6455)."""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Callable
from typing import BinaryIO

from embedded.errors import Failure

from .api import Api

BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
# The highest bits of the first and of the second byte. The other bits of the second byte contain the length.
FINAL = MASKED = 0x80
# The maximum length that fits into the second byte, and the values that announce a length in two and in eight more bytes.
SHORT, IN_TWO, IN_EIGHT = 125, 126, 127


class Frames:
    """The messages of an open WebSocket, from a function that sends bytes and a reader of the received bytes."""

    def __init__(self, send: Callable[[bytes], None], reader: BinaryIO) -> None:
        self._send, self._reader = send, reader
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._frame(BINARY, data)

    def receive(self) -> bytes:
        """Return at least one received byte; wait until there is one. Fail if the peer closes the stream."""
        if self._rest:
            found, self._rest = self._rest, b""
            return found
        while True:
            kind, length = self._reader.read(2)
            size = length & ~MASKED
            if size == IN_TWO:
                (size,) = struct.unpack(">H", self._reader.read(2))
            elif size == IN_EIGHT:
                (size,) = struct.unpack(">Q", self._reader.read(8))
            content = self._reader.read(size)
            kind &= 0xF
            if kind == PING:
                self._frame(PONG, content)
            elif kind == CLOSE:
                raise Failure("the stream has ended", content[2:].decode(errors="replace"))
            elif kind != PONG and content:
                return content

    def exactly(self, count: int) -> bytes:
        """Receive and return exactly `count` bytes."""
        parts, left = [], count
        while left:
            piece = self.receive()
            parts.append(piece[:left])
            self._rest = piece[left:]
            left -= len(parts[-1])
        return b"".join(parts)

    def _frame(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size <= SHORT:
            head = struct.pack(">BB", FINAL | kind, MASKED | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", FINAL | kind, MASKED | IN_TWO, size)
        else:
            head = struct.pack(">BBQ", FINAL | kind, MASKED | IN_EIGHT, size)
        # A mask of zeros leaves the data unchanged.
        self._send(head + bytes(4) + data)


class Stream(Frames):
    """An open stream through the API server."""

    def __init__(self, api: Api, path: str) -> None:
        connection = api.connect(timeout=60)
        connection.connect()
        self._socket = connection.sock
        reader = self._socket.makefile("rb")
        super().__init__(self._socket.sendall, reader)
        request = (
            f"GET {path} HTTP/1.1\r\nHost: kubernetes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
            "Sec-WebSocket-Protocol: plain.kubevirt.io\r\n\r\n"
        )
        self._socket.sendall(request.encode())
        status = reader.readline().decode().strip()
        while reader.readline().strip():
            pass
        if " 101 " not in f"{status} ":
            raise Failure(f"{path}: {status}")

    def close(self) -> None:
        """Close the stream like virtctl, without a close frame."""
        self._reader.close()
        self._socket.close()
