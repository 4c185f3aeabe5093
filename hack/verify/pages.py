"""Reads the commands in the documents for tests that execute them, so that a page and its test cannot differ.

    page ──commands──▶ each command of its blocks ──script, arguments──▶ a test or the demonstration
                                 │
                                 └──▶ page_commands.py: is each executed, or is there a reason?
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from embedded.errors import Failure

from .runner import REPOSITORY

# Languages of code blocks that consist of commands. In a block that has lines that begin with `$ `, and in a block without a
# language, only these lines are commands.
LANGUAGES = ("sh", "bash", "console")

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INPUT = re.compile(r"<<-?'?(\w+)'?[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command with all its lines, such as those of a loop or a here-document."""

    page: str
    line: int
    text: str

    @property
    def input(self) -> str:
        """The content of the here-document; empty without one."""
        found = _INPUT.search(self.text)
        return found[2] if found else ""

    @property
    def words(self) -> list[str]:
        """The words, including shell operators, without comments and the here-document."""
        line = re.sub(r"<<-?'?\w+'?", "", _INPUT.sub("", self.text)) if self.input else self.text
        lexer = shlex.shlex(re.sub(r"\\\n\s*", "", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return list(lexer)

    @property
    def is_plain(self) -> bool:
        """Whether the command is a single program with arguments, without a here-document or shell operators."""
        return not self.input and not any(re.fullmatch(r"[();<>|&]+", word) for word in self.words)


def commands(page: str, text: str) -> Iterator[Command]:
    """Yield the commands in the code blocks of a page, in order."""
    for block in _BLOCK.finditer(text):
        indentation, language, lines = len(block[1]), block[2], block[3].splitlines()
        first = text.count("\n", 0, block.start()) + 2
        if language in LANGUAGES and not any(line.startswith("$ ") for line in lines):
            yield from _commands(page, first, [line[indentation:] for line in lines])
        elif language in ("", *LANGUAGES):
            for at, line in enumerate(lines):
                if line.strip().startswith("$ "):
                    yield Command(page, first + at, line.strip().removeprefix("$ "))


def _commands(page: str, first: int, lines: list[str]) -> Iterator[Command]:
    begun: list[str] = []
    for at, line in enumerate(lines):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begun.append(line)
        if _is_complete("\n".join(begun)):
            yield Command(page, first + at + 1 - len(begun), "\n".join(begun))
            begun = []
    if begun:
        raise Failure(f"{page}: a command that begins with {begun[0]!r} has no end")


def _is_complete(text: str) -> bool:
    if text.endswith("\\"):
        return False
    # For a here-document without an end, bash only prints a warning.
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    return done.returncode == 0 and not done.stderr


def command(page: str, beginning: str) -> Command:
    """Return the only command of a page that begins with `beginning`; fail if there is not exactly one."""
    found = [one for one in commands(page, (REPOSITORY / page).read_text()) if one.text.startswith(beginning)]
    if len(found) != 1:
        raise Failure(f"{page}: {len(found)} commands begin with {beginning!r}, instead of one")
    return found[0]


def script(page: str, beginning: str, replaced: Mapping[str, str] | None = None) -> str:
    """Return the text of that command for a shell, with names of the page replaced by those of a test."""
    return _replaced(command(page, beginning).text, replaced or {}, page)


def arguments(page: str, beginning: str, replaced: Mapping[str, str] | None = None) -> list[str]:
    """Return the arguments of that command, which must be plain or read a here-document."""
    words = command(page, beginning).words[1:]
    return _replaced("\0".join(words), replaced or {}, page).split("\0")


def manifest(page: str, beginning: str, replaced: Mapping[str, str] | None = None) -> str:
    """Return the content of the here-document of that command."""
    return _replaced(command(page, beginning).input, replaced or {}, page)


def _replaced(text: str, replaced: Mapping[str, str], page: str) -> str:
    for name, other in replaced.items():
        text, count = re.subn(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lambda _, other=other: other, text)
        if not count:
            raise Failure(f"{page}: there is no {name!r} to replace in a command", text)
    return text
