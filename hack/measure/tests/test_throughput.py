"""Tests of the throughput measurement, with a relay in the test's own process."""

import contextlib
import os
import tempfile
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path

from measure.relay import listen, serve
from measure.tunnel_throughput import PIECE, Carrier, push


@contextlib.contextmanager
def carrier(folder: Path) -> Iterator[Carrier]:
    """Run a relay from one socket to another."""
    with listen(folder / "exit") as exit_, listen(folder / "entrance") as entrance:
        threading.Thread(target=serve, args=(entrance, folder / "exit"), daemon=True).start()
        yield Carrier(folder / "entrance", exit_, (os.getpid(), os.getpid()))


class Pushes(unittest.TestCase):
    def test_everything_arrives_on_each_stream(self) -> None:
        for streams in (1, 4):
            with self.subTest(streams), tempfile.TemporaryDirectory() as folder, carrier(Path(folder)) as carrying:
                self.assertGreater(push(carrying, streams, 3 * PIECE), 0)

    def test_streams_are_watched_both_idle_and_flowing(self) -> None:
        readings: list[None] = []
        with tempfile.TemporaryDirectory() as folder, carrier(Path(folder)) as carrying:
            push(carrying, 2, 8 * PIECE, lambda: readings.append(None))
        self.assertGreater(len(readings), 1)


if __name__ == "__main__":
    unittest.main()
