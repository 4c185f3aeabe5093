"""Tests of what the demonstration builds, and in which order."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from demonstration import preparation
from embedded.progress import Progress


class Build(unittest.TestCase):
    def test_fetchers_of_modules_are_installed_before_builds(self) -> None:
        steps: list[object] = []

        @contextmanager
        def built(*what: str) -> Iterator[mock.Mock]:
            steps.append(what)
            yield mock.Mock(result=lambda: ("", 0))

        with (
            mock.patch.object(preparation.toolchains, "check"),
            mock.patch.object(preparation.prerequisites, "ensure", lambda groups, *_, **__: steps.append(groups)),
            mock.patch.object(preparation, "built_meanwhile", built),
            mock.patch.object(preparation, "run", return_value=("", 0)),
        ):
            preparation.build(mock.create_autospec(Progress))
        self.assertEqual(steps, [("programs",), ("cluster",), preparation.PACKAGES])


if __name__ == "__main__":
    unittest.main()
