"""Results of a test suite, parsed from the output of a test runner."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


# Maximum length of a failure's reason in characters: it shows what the test waited for, and all failures fit into the last lines
# of a run.
LONGEST_REASON = 600


@dataclass
class Outcome:
    """The result of a suite: the number of passed tests, and the names of failed and skipped tests."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    name: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"suite {self.name:9} {self.passed:4} passed, {len(self.failed)} failed, "
            f"{len(self.skipped)} skipped in {self.seconds:.0f} s"
        )

    def count(self, name: str, good: bool) -> None:
        """Count a check by its result."""
        if good:
            self.passed += 1
        else:
            self.failed.append(name)

    def add(self, other: Outcome) -> None:
        """Add the results of another outcome."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons |= other.reasons

    def failures(self) -> list[str]:
        """Return a line for each failure: the name of the test, and the reason if the test reported one."""
        return [f"{name}: {self.reasons[name]}" if name in self.reasons else name for name in self.failed]


def of_libtest(output: str, code: int, ignored_is_skipped: bool = False) -> Outcome:
    """Parse the output of Rust's test runner. A nonzero exit code without a failed test counts as a failure."""
    outcome = Outcome()
    for line in output.splitlines():
        found = re.match(r"test (.+) \.\.\. (ok|FAILED|ignored)", line.strip())
        if not found:
            continue
        name, result = found.group(1).removesuffix(" - should panic"), found.group(2)
        if result == "ok":
            outcome.passed += 1
        elif result == "FAILED":
            outcome.failed.append(name)
        elif ignored_is_skipped:
            outcome.skipped.append(name)
    outcome.skipped += re.findall(r"^SKIPPED (.+)$", output, re.MULTILINE)
    outcome.reasons = _reasons(output)
    if code != 0 and not outcome.failed:
        outcome.failed.append(f"the test run ended with exit code {code}: {_last_lines(output)}")
    return outcome


def of_unittest(output: str, code: int) -> Outcome:
    """Parse the verbose output of Python's unittest. A nonzero exit code without a failed test counts as a failure."""
    outcome = Outcome()
    for line in output.splitlines():
        found = re.search(r"^(\S+) \(([^)]+)\).*?\.\.\. (ok|FAIL|ERROR|skipped(?: .*)?)$", line)
        if not found:
            found = re.search(r"^(.*?)() \.\.\. (ok|FAIL|ERROR|skipped(?: .*)?)$", line)
        if not found:
            continue
        name = found.group(2) or found.group(1)
        result = found.group(3)
        if result == "ok":
            outcome.passed += 1
        elif result.startswith("skipped"):
            outcome.skipped.append(f"{name}: {result.removeprefix('skipped').strip()}")
        else:
            outcome.failed.append(name)
    if code != 0 and not outcome.failed:
        outcome.failed.append(f"the test run ended with exit code {code}: {_last_lines(output)}")
    return outcome


def _reasons(output: str) -> dict[str, str]:
    """Return the reason of each failed Rust test by name: its output from the panic or error on, shortened."""
    reasons: dict[str, str] = {}
    for found in re.finditer(r"^---- (\S+) stdout ----$\n(.*?)(?=^---- |^failures:|\Z)", output, re.MULTILINE | re.DOTALL):
        name, text = found.groups()
        reported = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("note: ")]
        # Lines before the panic or error are the test's own log, which is shown above.
        first = next((at for at, line in enumerate(reported) if "panicked at" in line or line.startswith("Error:")), 0)
        reasons[name] = _shortened(" ".join(reported[first:]))
    return reasons


def _shortened(words: str) -> str:
    """Return both ends of a reason: the beginning shows what the test waited for, the end what happened instead."""
    if len(words) <= LONGEST_REASON:
        return words
    return f"{words[: LONGEST_REASON // 3]} … {words[-LONGEST_REASON * 2 // 3 :]}"


def _last_lines(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
