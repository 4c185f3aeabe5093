"""Commands of the documents, for tests that execute them: a page and its test cannot differ.

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

# Languages of blocks that consist of commands. In others, lines that begin with `$ ` are commands.
LANGUAGES = ("sh", "bash", "console")

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INPUT = re.compile(r"<<-?'?(\w+)'?[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command, with the lines that belong to it: a loop, or what it reads, is part of it."""

    page: str
    line: int
    text: str

    @property
    def input(self) -> str:
        """What it reads; empty without a here-document."""
        found = _INPUT.search(self.text)
        return found[2] if found else ""

    @property
    def words(self) -> list[str]:
        """Its words, operators of the shell among them, without comments and what it reads."""
        line = re.sub(r"<<-?'?\w+'?", "", _INPUT.sub("", self.text)) if self.input else self.text
        lexer = shlex.shlex(re.sub(r"\\\n\s*", "", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return list(lexer)

    @property
    def is_plain(self) -> bool:
        """Whether it is one program with arguments alone."""
        return not self.input and not any(re.fullmatch(r"[();<>|&]+", word) for word in self.words)


def commands(page: str, text: str) -> Iterator[Command]:
    """The commands in a page's blocks, in their order."""
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
    # It warns of a here-document without an end.
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    return done.returncode == 0 and not done.stderr


def command(page: str, beginning: str) -> Command:
    """The one command of a page that begins like this."""
    found = [one for one in commands(page, (REPOSITORY / page).read_text()) if one.text.startswith(beginning)]
    if len(found) != 1:
        raise Failure(f"{page}: {len(found)} commands begin with {beginning!r}, instead of one")
    return found[0]


def script(page: str, beginning: str, replaced: Mapping[str, str] | None = None) -> str:
    """The text of that command for a shell, with the page's names replaced by those of a test."""
    return _replaced(command(page, beginning).text, replaced or {}, page)


def arguments(page: str, beginning: str, replaced: Mapping[str, str] | None = None) -> list[str]:
    """The arguments of that command, which is a plain one or reads a here-document."""
    words = command(page, beginning).words[1:]
    return _replaced("\0".join(words), replaced or {}, page).split("\0")


def manifest(page: str, beginning: str, replaced: Mapping[str, str] | None = None) -> str:
    """What that command reads."""
    return _replaced(command(page, beginning).input, replaced or {}, page)


def _replaced(text: str, replaced: Mapping[str, str], page: str) -> str:
    for name, other in replaced.items():
        text, count = re.subn(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lambda _, other=other: other, text)
        if not count:
            raise Failure(f"{page}: there is no {name!r} to replace in a command", text)
    return text
