"""The order of suites."""

import argparse
import contextlib
import io
import signal
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

from embedded.errors import Failure
from embedded.progress import Progress
from verify import __main__ as verify
from verify import runner
from verify.__main__ import SUITES, _run, before
from verify.outcome import Outcome


class Before(unittest.TestCase):
    def test_each_suite_waits_for_all_before_but_parallel_suites(self) -> None:
        names = list(SUITES)
        self.assertEqual(
            {name: before(name, names[:at]) for at, name in enumerate(names)},
            {
                "style": [],
                "embedded": [],
                "rust": ["style"],
                "python": ["embedded"],
                "crates": ["style", "rust"],
                "cluster": ["style", "embedded"],
            },
        )

    def test_named_suites_run_in_that_order(self) -> None:
        self.assertEqual(before("style", ["cluster", "rust"]), ["cluster", "rust"])


class Preparation(unittest.TestCase):
    def test_fetchers_of_modules_are_installed_before_builds(self) -> None:
        steps: list[object] = []

        @contextlib.contextmanager
        def built(*what: str) -> Iterator[None]:
            steps.append("build")
            yield

        def ensure(groups: Iterable[str], *_: object, **__: object) -> None:
            steps.append(groups)

        self.enterContext(mock.patch.object(verify, "built_meanwhile", built))
        self.enterContext(mock.patch.object(verify, "_run", return_value=[Outcome(passed=1)]))
        self.enterContext(mock.patch.object(verify.toolchains, "check"))
        self.enterContext(mock.patch.object(verify.interruption, "heed_termination"))
        self.enterContext(mock.patch.object(verify.prerequisites, "ensure", ensure))
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.assertEqual(verify.main(["cluster"]), 0)
        self.assertEqual(steps, [("programs",), "build", verify.prerequisites.PACKAGES])


class SideBySide(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        self.enterContext(mock.patch.object(runner, "_interrupted", threading.Event()))

    def run_suites(self, **suites: Callable[[argparse.Namespace, Progress], Outcome]) -> list[Outcome]:
        return _run(list(suites), suites, argparse.Namespace(), Progress())

    def test_outcomes_are_in_the_order_of_the_suites(self) -> None:
        ended = threading.Event()

        def crates(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            self.assertTrue(ended.wait(60))
            return Outcome(passed=1)

        def cluster(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            ended.set()
            return Outcome(passed=2)

        done = self.run_suites(crates=crates, cluster=cluster)
        self.assertEqual([(outcome.name, outcome.passed) for outcome in done], [("crates", 1), ("cluster", 2)])

    def test_one_that_waits_starts_after_a_failure_too(self) -> None:
        ended = []

        def style(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            ended.append("style")
            raise Failure("no compiler")

        def rust(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            return Outcome(passed=len(ended))

        failed, passed = self.run_suites(style=style, rust=rust)
        self.assertEqual((failed.failed, passed.passed), (["style: no compiler"], 1))

    def test_an_interruption_ends_those_that_run_and_starts_no_others(self) -> None:
        begun = threading.Event()
        started: list[str] = []

        def style(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            begun.set()
            while True:
                runner.run(["sleep", "0.1"], quiet=True)

        def python(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            self.assertTrue(begun.wait(60))
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            return Outcome()

        def cluster(arguments: argparse.Namespace, progress: Progress) -> Outcome:
            started.append("cluster")
            return Outcome()

        # A background job of a shell ignores SIGINT.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        with self.assertRaises(KeyboardInterrupt):
            self.run_suites(style=style, python=python, cluster=cluster)
        self.assertEqual(started, [])


if __name__ == "__main__":
    unittest.main()
