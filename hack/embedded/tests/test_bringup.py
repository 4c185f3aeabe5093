"""Decisions of the steps that start a cluster."""

import tempfile
import unittest
from pathlib import Path

from embedded.bringup import has_booted

BOOTED = b'time="2026-01-01T00:00:00Z" level=info msg="containerd successfully booted in 0.02s"\n'


class Readiness(unittest.TestCase):
    def test_only_lines_of_the_current_containerd_count(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "containerd.log"
            for written, since, expected in [
                (b"", 0, False),
                (b"starting\n", 0, False),
                (b"starting\n" + BOOTED, 0, True),
                (BOOTED + b"starting\n", len(BOOTED), False),
                (BOOTED + b"starting\n" + BOOTED, len(BOOTED), True),
                (b"starting\n", None, True),
            ]:
                log.write_bytes(written)
                self.assertIs(has_booted(log, since), expected, (written, since))


if __name__ == "__main__":
    unittest.main()
