"""Tests of WebSocket frames."""

from __future__ import annotations

import io
import unittest

from embedded.errors import Failure

from measure.websocket import Frames


class TestFrames(unittest.TestCase):
    """Frames in both directions, with each encoding of the length."""

    def setUp(self) -> None:
        self.sent = b""

    def frames(self, arrived: bytes) -> Frames:
        """Return frames that read `arrived` and append sent bytes to `self.sent`."""

        def send(data: bytes) -> None:
            self.sent += data

        return Frames(send, io.BytesIO(arrived))

    def test_lengths_are_written_and_read_alike(self) -> None:
        for length, head in ((1, "8281"), (125, "82fd"), (126, "82fe007e"), (70000, "82ff0000000000011170")):
            self.sent = b""
            data = b"x" * length
            self.frames(b"").send(data)
            self.assertEqual(self.sent.hex()[: len(head)], head)
            # A server masks nothing.
            size = len(bytes.fromhex(head))
            arrived = bytes([0x82, self.sent[1] & 0x7F]) + self.sent[2:size] + self.sent[size + 4 :]
            self.assertEqual(self.frames(arrived).receive(), data)

    def test_pings_get_pongs_and_data_is_joined(self) -> None:
        frames = self.frames(b"\x89\x02hi" + b"\x82\x03abc" + b"\x82\x00" + b"\x82\x02de")
        self.assertEqual(frames.exactly(4), b"abcd")
        self.assertEqual(frames.receive(), b"e")
        self.assertEqual(self.sent, b"\x8a\x82\0\0\0\0hi")

    def test_close_has_a_reason(self) -> None:
        with self.assertRaises(Failure):
            self.frames(b"\x88\x05\x03\xe8bye").receive()


if __name__ == "__main__":
    unittest.main()
