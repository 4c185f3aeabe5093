"""Checks that the table of rules in controller/core/README.md names only files, definitions and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from . import browser
from .runner import REPOSITORY
from .runner import run as command

PAGE = "controller/core/README.md"
# The header of the table; tables with other headers are skipped.
HEADER = "| question | rule | module | constant or function | test |"

_DEFINITION = r"\b(?:fn|const|static|struct|enum|trait|type|class|def) {name}\b"
_RUST_TEST = re.compile(r"#\[(?:tokio::)?test\b[^\]]*\](?:\s*#\[[^\]]*\])*\s*(?:async )?fn (\w+)")
_PYTHON_TEST = re.compile(r"^ *def (\w+)", re.MULTILINE)


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row below the header."""
    inside = False
    for line in text.splitlines():
        inside = line == HEADER or (inside and line.startswith("|"))
        if inside and line != HEADER and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def wrong(text: str, read: Callable[[str], str], tests: set[str]) -> Iterator[str]:
    """Yield a line for each empty column and for each name in the rows that does not exist.

    `read` returns the text of a file, or an empty string if the file does not exist.
    """
    for question, *cells in rows(text):
        _, modules, names, named_tests = (re.findall(r"`([^`]+)`", cell) for cell in cells)
        sources = {module: read(module) for module in modules}
        yield from (f"{question} {module} does not exist" for module, source in sources.items() if not source)
        for column, found in (("module", modules), ("constant or function", names), ("test", named_tests)):
            if not found:
                yield f"{question} no {column}"
        for name in names:
            definition = _DEFINITION.format(name=re.escape(name))
            if not any(re.search(definition, source) for source in sources.values()):
                yield f"{question} {name} is defined in none of its modules"
        yield from (f"{question} there is no test {name}" for name in named_tests if name not in tests)


def check() -> dict[str, list[str]]:
    """Check the page for the style suite; return the problems by the name of the check."""
    tracked, _ = command(["git", "ls-files", "*.rs", "hack/*.py"], quiet=True)
    tests: set[str] = set()
    for source in (*tracked.split(), *map(str, browser.TESTS.glob("test_*.py"))):
        pattern = _RUST_TEST if source.endswith(".rs") else _PYTHON_TEST
        tests.update(pattern.findall((REPOSITORY / source).read_text()))

    def read(module: str) -> str:
        path = REPOSITORY / module
        return path.read_text() if path.is_file() else ""

    text = (REPOSITORY / PAGE).read_text()
    found = list(wrong(text, read, tests)) if any(rows(text)) else [f"{PAGE}: there is no table of rules"]
    return {"files, definitions and tests of the table of rules exist": found}
