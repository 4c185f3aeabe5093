"""Tests of the deletion of clusters by the demonstration."""

from __future__ import annotations

import contextlib
import io
import unittest
from unittest import mock

from demonstration import __main__ as demonstration
from embedded.errors import Failure


class Removal(unittest.TestCase):
    def test_only_a_new_cluster_is_taken_away(self) -> None:
        made = mock.Mock(kubeconfig="/config")
        for names, arguments, up, code, removed, words in (
            ([], [], None, 0, True, ""),
            (["other"], [], None, 0, True, ""),
            ([], [], Failure("etcd died"), 1, True, ""),
            ([], ["--keep"], None, 0, False, "The cluster is kept"),
            (["drydock"], [], None, 0, False, "The cluster existed before and is kept"),
            (["drydock"], ["--keep"], None, 0, False, "The cluster existed before and is kept"),
            (["drydock"], [], Failure("etcd died"), 1, False, ""),
            (["other"], ["--name", "other"], None, 0, False, "hack/down --name other"),
        ):
            with (
                self.subTest(names=names, arguments=arguments, up=up),
                mock.patch.object(demonstration.registered, "names", lambda: names),
                mock.patch.object(demonstration.cluster, "up", side_effect=up, return_value=made),
                mock.patch.object(demonstration.cluster, "down") as down,
                mock.patch.object(demonstration.preparation, "build"),
                mock.patch.object(demonstration.interruption, "heed_termination"),
                mock.patch.object(demonstration, "built_meanwhile", lambda *_: contextlib.nullcontext()),
                mock.patch.object(demonstration, "_show"),
                contextlib.redirect_stderr(io.StringIO()),
                contextlib.redirect_stdout(io.StringIO()) as printed,
            ):
                self.assertEqual(demonstration.main(arguments), code)
                self.assertEqual(down.called, removed)
                self.assertIn(words, printed.getvalue())
                self.assertEqual(bool(printed.getvalue()), bool(words))


if __name__ == "__main__":
    unittest.main()
