"""Distribution of tests among clusters, and creation and removal of the clusters."""

import argparse
import json
import os
import unittest
from pathlib import Path
from unittest import mock

from embedded import interruption
from embedded.errors import Failure
from embedded.progress import Progress
from verify import cluster, faults, previous, up
from verify.cluster import BROWSER, LAST, LONGEST, QUICKEST, REMOVAL, Turns, is_known, ordered, selected, wanted
from verify.outcome import Outcome
from verify.runner import REPOSITORY
from verify.rust import ClusterTests, Program, programs, tests_by_file


def artifact(source: str, executable: str | None = "/target/debug/deps/drain-1", is_test: bool = True) -> str:
    """Return a line of cargo's JSON output."""
    target = {"kind": ["test"], "src_path": source, "name": Path(source).stem}
    manifest = {"manifest_path": "/repository/tests/Cargo.toml", "profile": {"test": is_test}}
    return json.dumps({"reason": "compiler-artifact", "target": target, "executable": executable, **manifest})


class Shared(unittest.TestCase):
    FILES = ("admission", "configuration", "drain", "faults", "labels", "machines", "placement", "policies", "rollout")

    def test_each_file_is_handed_out_once(self) -> None:
        first, second = iter(turns := Turns(self.FILES, seed=1)), iter(turns)
        taken = [next(first), next(second), next(first)]
        self.assertEqual(taken, ordered(self.FILES, 1)[:3])
        self.assertEqual([*second, *first], ordered(self.FILES, 1)[3:])

    def test_filter_selects_whole_files_or_single_tests(self) -> None:
        names = ("cli_works", "plane_fails", "other")
        for file, word, expected in (
            ("cli_check", "cli", [*names]),
            ("drain", "cli", ["cli_works"]),
            ("drain", "drain", [*names]),
            ("drain_control_plane", "plane", ["plane_fails"]),
            ("drain", "nothing", []),
            ("drain", "", [*names]),
        ):
            self.assertEqual(selected(file, names, word), expected, (file, word))

    def test_files_without_a_selected_test_need_no_cluster(self) -> None:
        tests = ClusterTests(Path("/target/cluster-1"), {"drain": ("moves", "stays"), "cli": ("works",), LAST: ("rights_of_last",)})
        for word, expected in (
            ("moves", ["drain"]),
            ("cli", ["cli"]),
            ("rights_of_last", []),
            ("test_display_is_taken", [BROWSER]),
            ("removal_of_stuck", [REMOVAL]),
            ("no such test", []),
            ("", ["drain", "cli", BROWSER, REMOVAL]),
        ):
            self.assertEqual(wanted(tests, word), expected, word)

    def test_filter_that_selects_nothing_needs_no_cluster(self) -> None:
        tests = ClusterTests(Path("/target/cluster-1"), {"drain": ("moves", "stays"), LAST: ("rights",)})
        for word in ("moves", "drain", "rights", LAST, "test_display_is_taken", "removal_of_stuck"):
            self.assertTrue(is_known(tests, word), word)
        self.enterContext(mock.patch.object(cluster, "cluster_tests", return_value=tests))
        up = self.enterContext(mock.patch.object(cluster.clusters, "up"))
        outcome = cluster.run(argparse.Namespace(seed=1, only="no such test", keep=False), mock.create_autospec(Progress))
        self.assertEqual(outcome.failed, ["no test name contains 'no such test', and the name of no test file begins with this word"])
        up.assert_not_called()

    def test_tests_on_demand_are_not_selected(self) -> None:
        names = (faults.TEST, f"{previous.TESTS}agents", "other")
        for word in ("", "migration_faults", "other"):
            self.assertEqual(selected("migration_faults", names, word), ["other"], word)

    def test_seed_repeats_an_order_and_seeds_differ(self) -> None:
        orders = {tuple(ordered(self.FILES, seed)) for seed in range(50)}
        self.assertGreater(len(orders), 40)
        for seed in range(50):
            order = ordered(self.FILES, seed)
            self.assertEqual(order, ordered(reversed(self.FILES), seed))
            self.assertEqual(sorted(order), sorted(self.FILES))

    def test_long_files_start_in_the_first_half(self) -> None:
        first = {ordered(self.FILES, seed)[0] for seed in range(50)}
        self.assertTrue(first - set(LONGEST), "a short file never comes first")
        for seed in range(50):
            half = ordered(self.FILES, seed)[: len(self.FILES) // 2]
            self.assertLessEqual({"drain", "machines"}, set(half))

    def test_quick_files_start_last(self) -> None:
        quick = set(self.FILES) & set(QUICKEST)
        self.assertEqual(len(quick), 4)
        for seed in range(50):
            self.assertEqual(set(ordered(self.FILES, seed)[-4:]), quick)

    def test_the_files_that_are_named_exist(self) -> None:
        exist = {path.stem for path in (REPOSITORY / "tests" / "tests").glob("*.rs")}
        self.assertLessEqual({*LONGEST, *QUICKEST, LAST} - {BROWSER}, exist)
        self.assertFalse(set(LONGEST) & set(QUICKEST))


class Lane(unittest.TestCase):
    def test_no_file_runs_after_a_failed_removal_test(self) -> None:
        for failed, runs in (([], [REMOVAL, "labels"]), (["removal_leaves_nothing"], [REMOVAL])):
            # A cluster with this name may exist on this machine, and the lane would remove it.
            self.enterContext(mock.patch.object(cluster.registered, "names", lambda: []))
            self.enterContext(mock.patch.object(cluster.clusters, "up"))
            self.enterContext(mock.patch.object(cluster, "install"))
            self.enterContext(mock.patch.object(cluster, "_show"))
            self.enterContext(mock.patch.object(cluster.removal, "run", return_value=Outcome(failed=failed)))
            self.enterContext(mock.patch.object(cluster, "_tests", return_value=Outcome(passed=1)))
            ran: list[str] = []
            turns = Turns([REMOVAL, "labels"], seed=1)
            tests = ClusterTests(Path("/target/cluster-1"), {"labels": ("a",)})
            arguments = argparse.Namespace(only="", keep=False)
            outcome = cluster._lane("verify", turns, ran, tests, arguments, mock.create_autospec(Progress))
            self.assertEqual((ran, outcome.failed), (runs, failed))


class Removed(unittest.TestCase):
    def test_cluster_that_cannot_be_removed_keeps_results(self) -> None:
        removed: list[str] = []

        def down(name: str, progress: Progress) -> None:
            if name == cluster.NAMES[0]:
                raise OSError("busy")
            removed.append(name)

        tests = ClusterTests(Path("/target/cluster-1"), {"drain": ("moves",), "cli": ("works",)})
        for name in ("virtctl", "descheduler"):
            self.enterContext(mock.patch.object(cluster.build, name, return_value="/program"))
        self.enterContext(mock.patch.dict(os.environ))
        self.enterContext(mock.patch.object(cluster, "cluster_tests", return_value=tests))
        self.enterContext(mock.patch.object(cluster, "_lane", lambda name, turns, *_: Outcome(passed=len([*turns]))))
        self.enterContext(mock.patch.object(cluster, "_tests", return_value=Outcome(passed=1)))
        self.enterContext(mock.patch.object(cluster.clusters, "down", down))
        arguments = argparse.Namespace(seed=1, only="", keep=False)
        outcome = cluster.run(arguments, mock.create_autospec(Progress))
        self.assertEqual(outcome.failed, [f"cluster {cluster.NAMES[0]} cannot be removed: busy"])
        self.assertGreaterEqual(outcome.passed, 3)
        self.assertEqual(removed, list(cluster.NAMES[1:]))


class SelfTest(unittest.TestCase):
    def test_clusters_of_a_killed_run_are_removed_first(self) -> None:
        steps: list[str] = []

        def command(*_: object, **__: object) -> tuple[str, int]:
            steps.append("self-test")
            return "[   1.0s] ok      it works\n", 0

        self.enterContext(mock.patch.object(cluster.build, "ensure"))
        self.enterContext(mock.patch.object(cluster.lifecycle, "left_behind", lambda name: [name]))
        down = self.enterContext(mock.patch.object(cluster.clusters, "down"))
        down.side_effect = lambda name, progress: steps.append(f"down {name}")
        self.enterContext(mock.patch.object(cluster, "command", command))
        outcome = cluster.selftest(argparse.Namespace(), mock.create_autospec(Progress))
        self.assertEqual((outcome.passed, outcome.failed), (1, []))
        self.assertEqual(steps, [f"down {cluster.SELFTEST}", "self-test"])


class Up(unittest.TestCase):
    def test_bringing_up_heeds_a_termination(self) -> None:
        with (
            mock.patch.object(interruption, "heed_termination") as heed,
            mock.patch.object(up.cluster, "up", side_effect=Failure("no root")),
            mock.patch("sys.stderr"),
        ):
            self.assertEqual(up.main([]), 1)
        heed.assert_called_once_with()


class Programs(unittest.TestCase):
    def test_only_tests_that_were_built_are_taken(self) -> None:
        messages = "\n".join(
            [
                artifact("/repository/tests/tests/drain.rs"),
                artifact("/repository/tests/src/lib.rs", None),
                artifact("/repository/tests/scale/main.rs", "/target/debug/drydock-scale", is_test=False),
                json.dumps({"reason": "build-finished", "success": True}),
                "warning: something",
            ]
        )
        drain = Program(
            target="drain",
            path=Path("/target/debug/deps/drain-1"),
            source=Path("/repository/tests/tests/drain.rs"),
            folder=Path("/repository/tests"),
        )
        self.assertEqual(programs(messages), [drain])

    def test_tests_are_listed_by_file(self) -> None:
        tests = tests_by_file("drain::node_is_drained: test\ncli::plan_is_made: test\ndrain::inner::case: test\n\n3 tests\n")
        self.assertEqual(tests, {"drain": ("node_is_drained", "inner::case"), "cli": ("plan_is_made",)})
        argv = ClusterTests(Path("/target/cluster-1"), tests).argv("drain", ["inner::case"])
        self.assertEqual(argv[0], "/target/cluster-1")
        self.assertEqual(argv[argv.index("--exact") + 1 :], ["drain::inner::case"])
