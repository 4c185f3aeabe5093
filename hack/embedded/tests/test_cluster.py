"""Tests that clusters are removed after use."""

from __future__ import annotations

import unittest
from unittest import mock

from embedded import cluster
from embedded.errors import Failure
from embedded.progress import Progress


class BroughtUp(unittest.TestCase):
    def test_cluster_goes_at_the_end_of_any_run_unless_kept(self) -> None:
        for up, inside, keep, removed in (
            (None, None, False, True),
            (None, Failure("no disk"), False, True),
            (None, KeyboardInterrupt(), False, True),
            (Failure("etcd died"), None, False, True),
            (KeyboardInterrupt(), None, False, True),
            (None, None, True, False),
            (Failure("etcd died"), None, True, False),
        ):
            expected = up or inside
            with (
                self.subTest(up=up, inside=inside, keep=keep),
                mock.patch.object(cluster, "up", side_effect=up, return_value="made"),
                mock.patch.object(cluster, "down") as down,
            ):
                raised: BaseException | None = None
                try:
                    with cluster.brought_up("a", mock.create_autospec(Progress), keep=keep) as made:
                        self.assertEqual(made, "made")
                        if inside is not None:
                            raise inside
                except (Failure, KeyboardInterrupt) as error:
                    raised = error
                self.assertIs(raised, expected)
                self.assertEqual([call.args[0] for call in down.call_args_list], ["a"] if removed else [])


if __name__ == "__main__":
    unittest.main()
