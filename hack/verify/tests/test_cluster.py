"""Sharing tests out among clusters."""

import json
import unittest
from pathlib import Path

from verify.cluster import LAST, LONGEST, Turns, ordered
from verify.runner import REPOSITORY
from verify.rust import programs


def artifact(source: str, executable: str | None = "/target/debug/deps/drain-1", kind: str = "test") -> str:
    """A line of cargo's."""
    target = {"kind": [kind], "src_path": source, "name": Path(source).stem}
    return json.dumps({"reason": "compiler-artifact", "target": target, "executable": executable})


class Shared(unittest.TestCase):
    def test_the_long_ones_begin_first_and_each_is_given_out_once(self) -> None:
        files = ["admission", "drain", "rollout", "machines"]
        self.assertEqual(ordered(files), ["drain", "machines", "admission", "rollout"])
        first, second = iter(turns := Turns(files)), iter(turns)
        self.assertEqual([next(first), next(second), next(first)], ["drain", "machines", "admission"])
        turns.stop()
        self.assertEqual(list(second), [])

    def test_the_files_that_are_named_exist(self) -> None:
        exist = {path.stem for path in (REPOSITORY / "tests" / "tests").glob("*.rs")}
        self.assertLessEqual({*LONGEST, LAST}, exist)


class Programs(unittest.TestCase):
    def test_only_tests_of_the_folder_are_taken(self) -> None:
        folder = Path("/repository/tests/tests")
        messages = "\n".join(
            [
                artifact("/repository/tests/tests/drain.rs"),
                artifact("/repository/agent/tests/labels.rs", "/target/debug/deps/labels-1"),
                artifact("/repository/tests/src/lib.rs", None, "lib"),
                artifact("/repository/tests/scale/main.rs", "/target/debug/drydock-scale", "bin"),
                json.dumps({"reason": "build-finished", "success": True}),
                "warning: something",
            ]
        )
        self.assertEqual(programs(messages, folder), {"drain": Path("/target/debug/deps/drain-1")})
