"""Tests the commands with clusters that cannot be removed."""

from __future__ import annotations

import contextlib
import io
import unittest
from unittest import mock

from embedded import __main__ as embedded
from embedded.errors import Failure
from embedded.progress import Progress


class Down(unittest.TestCase):
    def test_all_clusters_are_tried_and_those_left_are_named(self) -> None:
        removed: list[str] = []

        def down(name: str, progress: Progress) -> None:
            if name == "b":
                raise Failure("failed with exit code 32: umount")
            removed.append(name)

        self.enterContext(mock.patch.object(embedded.registered, "names", lambda: ["a", "b", "c"]))
        self.enterContext(mock.patch.object(embedded.cluster, "down", down))
        self.enterContext(mock.patch.object(embedded.interruption, "heed_termination"))
        printed = self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        self.assertEqual(embedded.main(["down", "--all"]), 1)
        self.assertEqual(removed, ["a", "c"])
        self.assertEqual(printed.getvalue(), "error: cluster b cannot be removed: failed with exit code 32: umount\n")


if __name__ == "__main__":
    unittest.main()
