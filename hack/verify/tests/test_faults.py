"""The table of faults, and the parsing of results."""

import json
import unittest

from verify.faults import outcome, read, table

CASES = ["kill agent source running", "freeze tunnel target running", "cut node-to-node running"]


def lines(*reported: object) -> str:
    """Return results in the format that the test writes."""
    return "".join(json.dumps(one) + "\n" for one in reported)


def passed(case: str, migration: str = "Succeeded") -> dict[str, object]:
    """Return the result of a case that passed."""
    return {"case": case, "passed": True, "migration": migration, "guest": "target", "retry": "succeeded", "seconds": 9}


def failed(case: str, error: str = "it runs twice") -> dict[str, object]:
    """Return the result of a case that failed."""
    return {"case": case, "passed": False, "error": error, "seconds": 90}


class Results(unittest.TestCase):
    def test_the_newest_result_of_a_case_counts(self) -> None:
        text = lines({"cases": CASES}, failed(CASES[0]), passed(CASES[1]), {"cases": CASES}, passed(CASES[0]))
        cases, newest = read(text)
        self.assertEqual(cases, CASES)
        self.assertEqual({case: reported["passed"] for case, reported in newest.items()}, {CASES[0]: True, CASES[1]: True})

    def test_interrupted_case_counts_for_nothing(self) -> None:
        text = lines({"cases": CASES}, passed(CASES[0])) + '{"case": "freeze tunnel tar'
        self.assertEqual(list(read(text)[1]), [CASES[0]])
        self.assertEqual(read("7\n\n[]\nnull\n"), ([], {}))

    def test_a_case_that_is_no_more_is_forgotten(self) -> None:
        self.assertEqual(read(lines(passed("kill nothing"), {"cases": CASES}))[1], {})


class Table(unittest.TestCase):
    def test_every_case_has_a_row_even_if_not_run(self) -> None:
        text = table(*read(lines({"cases": CASES}, passed(CASES[0], "Failed GuestStayed"), failed(CASES[1], "a | b\nc"))))
        rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
        self.assertEqual(
            rows,
            [
                "| kill agent source running | Failed GuestStayed | target | succeeded |",
                "| freeze tunnel target running | **failed**: a / b c |  |  |",
                "| cut node-to-node running | not run |  |  |",
            ],
        )
        self.assertIn("Of 3 cases 1 passed, 1 failed, 1 were not run.", text)

    def test_same_results_make_the_same_table_in_any_order(self) -> None:
        slow = dict(passed(CASES[0]), seconds=80)
        self.assertEqual(table(*read(lines({"cases": CASES}, slow))), table(*read(lines({"cases": CASES}, passed(CASES[0])))))


class Counted(unittest.TestCase):
    def test_cases_of_a_run_are_counted(self) -> None:
        found = outcome(lines({"cases": CASES}, passed(CASES[0]), failed(CASES[1])), 101)
        self.assertEqual((found.passed, found.failed), (1, [CASES[1]]))
        self.assertEqual(found.failures(), [f"{CASES[1]}: it runs twice"])

    def test_failed_run_without_output_has_failed(self) -> None:
        self.assertEqual(outcome(lines({"cases": CASES}, passed(CASES[0])), 1).failed, ["the test run ended with exit code 1"])
        self.assertEqual(outcome("", 0).failed, [])
