"""Runs the full matrix of faults during live migrations: `hack/test --all-faults`.

    tests/tests/migration_faults.rs ──▶ target/faults.jsonl ──▶ tests/faults.md
     tries each case that has not passed   a line for each case     a row for each case

A run takes more than an hour and can be interrupted: cases that have passed are not run again.
`--again` deletes the previous results.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from embedded import cluster as clusters
from embedded.progress import Progress

from .install import install
from .outcome import Outcome
from .runner import REPOSITORY
from .runner import run as command
from .rust import cluster_tests

NAME = "faults"
TEST = "the_whole_matrix_of_faults"
TABLE = REPOSITORY / "tests" / "faults.md"

HEAD = """# Guests after faults during their migration

`hack/test --all-faults` writes this page. The command tries each kind of fault on each part in each phase of a live
migration, on two nodes with real guests. Once a fault is undone, it checks that the guest runs on exactly one node, that
no number of its count is missing or appears twice, that the objects name its node, and that the guest can move again. If
a fault hits the guest itself, the command checks that the end of the guest is reported. `hack/test` tries the first nine
cases of a part that contains each pair of kind, part, side and phase at least once (`DRYDOCK_FAULTS_CASES=99`: the whole
part).

- *kill* is `kill -9`. *freeze* stops a process for longer than the deadlines (11 s and 8 s) and then continues it. *cut*
  drops all packets of a link for the same time.
- *source* and *target* are the nodes, or the pods, that the guest leaves and moves to.
- *hand-over* is the moment at which the source's libvirt reports that the guest has stopped for its migration.
"""


def results_file() -> Path:
    """Return the path of the results in cargo's target folder, which is created if necessary."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "faults.jsonl"


def read(text: str) -> tuple[list[str], dict[str, dict[str, object]]]:
    """Return all cases in order, and the newest result of each case that was run. Incomplete lines are ignored."""
    cases: list[str] = []
    newest: dict[str, dict[str, object]] = {}
    for line in text.splitlines():
        try:
            reported = json.loads(line)
        except ValueError:
            continue
        if not isinstance(reported, dict):
            continue
        if isinstance(reported.get("cases"), list):
            cases = [str(case) for case in reported["cases"]]
        elif isinstance(reported.get("case"), str):
            newest[reported["case"]] = reported
    return cases, {case: reported for case, reported in newest.items() if case in cases}


def table(cases: list[str], newest: dict[str, dict[str, object]]) -> str:
    """Return the Markdown page with the results of all cases."""
    passed = sum(1 for reported in newest.values() if reported.get("passed"))
    failed = len(newest) - passed
    lines = [HEAD, f"Of {len(cases)} cases {passed} passed, {failed} failed, {len(cases) - len(newest)} were not run.", ""]
    lines += ["| case | migration | guest then on | moved again |", "|---|---|---|---|"]
    for case in cases:
        reported = newest.get(case)
        if reported is None:
            row = ("not run", "", "")
        elif reported.get("passed"):
            row = (reported.get("migration", ""), reported.get("guest", ""), reported.get("retry", ""))
        else:
            row = (f"**failed**: {_short(str(reported.get('error', 'nothing was reported')))}", "", "")
        lines.append("| " + " | ".join([case, *map(str, row)]) + " |")
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    """Return a text as the cell of a table, shortened to 200 characters."""
    words = " ".join(text.replace("|", "/").split())
    return words if len(words) <= 200 else words[:199] + "…"


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the cases that have not passed on a dedicated cluster, and write the table even if the run fails."""
    results = results_file()
    if arguments.again:
        results.unlink(missing_ok=True)
    before = results.stat().st_size if results.exists() else 0
    with clusters.brought_up(NAME, progress, keep=arguments.keep) as made:
        try:
            install(made, progress)
            argv = [*cluster_tests(progress).argv("migration_faults", [TEST]), "--nocapture"]
            environment = {
                "DRYDOCK_TEST_CLUSTER": NAME,
                "DRYDOCK_FAULTS_RESULTS": str(results.absolute()),
                "DRYDOCK_FAULTS_ONLY": arguments.only,
                "RUST_BACKTRACE": "0",
            }
            _, code = command(argv, environment, folder=REPOSITORY / "tests")
        finally:
            if results.exists():
                TABLE.write_text(table(*read(results.read_text())))
                progress.note(f"wrote {TABLE.relative_to(REPOSITORY)}")
    return outcome(results.read_bytes()[before:].decode(errors="replace") if results.exists() else "", code)


def outcome(added: str, code: int) -> Outcome:
    """Return the outcome of this run from its exit code and the lines that it added to the results."""
    _, newest = read(added)
    found = Outcome()
    for case, reported in newest.items():
        if reported.get("passed"):
            found.passed += 1
        else:
            found.failed.append(case)
            found.reasons[case] = str(reported.get("error", ""))[:300]
    if code != 0 and not found.failed:
        found.failed.append(f"the test run ended with exit code {code}")
    return found
