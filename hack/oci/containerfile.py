"""Parses the subset of the Containerfile language that the builder supports.

Anything outside the subset is rejected with file and line: an error is better
than an image that differs from that of a container engine.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oci.progress import Failure

INSTRUCTIONS = frozenset(
    ["ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN", "USER", "WORKDIR"]
)
FLAGS = {"COPY": frozenset(["chmod", "chown"])}
VARIABLE = re.compile(r"\\(?P<escaped>\$)|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[^}]*)\}|(?P<bad>\{?))")
NAME = re.compile(r"[A-Za-z_]\w*\Z")


class Refused(Failure):
    """A recipe that uses a feature outside the subset."""


@dataclass(frozen=True)
class Instruction:
    """One instruction as written, before variables are expanded."""

    source: str
    line: int
    keyword: str
    text: str
    flags: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, reason: str) -> Refused:
        """Return an error with the file and line of this instruction."""
        return Refused(f"{self.source}:{self.line}: {reason}")

    def expand(self, text: str, variables: Mapping[str, str]) -> str:
        """Expand $NAME and ${NAME}; an unknown name is an error, not an empty string."""

        def replace(found: re.Match[str]) -> str:
            if found["escaped"]:
                return "$"
            name = found["plain"] or found["braced"] or ""
            if found["bad"] is not None or not NAME.match(name):
                raise self.refuse(f"only $NAME and ${{NAME}} are supported, not {found[0]!r}")
            if name not in variables:
                raise self.refuse(f"variable {name} is not set by ARG or ENV")
            return variables[name]

        return VARIABLE.sub(replace, text)

    def words(self) -> list[str]:
        """Split the text as a shell would, without expanding variables."""
        try:
            return shlex.split(self.text)
        except ValueError as error:
            raise self.refuse(f"cannot split {self.text!r}: {error}") from error

    def exec_form(self) -> list[str] | None:
        """Return the words of the JSON form, or None for the shell form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise self.refuse("the JSON form must be a list of strings")
        return words

    def pairs(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the NAME=value pairs of ENV and LABEL."""
        result = {}
        for word in self.words():
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise self.refuse(f"{self.keyword} requires NAME=value, not {word!r}")
            result[name] = self.expand(value, variables)
        return result


def parse(path: Path, source: str | None = None) -> list[Instruction]:
    """Parse a Containerfile; `source` is its name in errors, by default its path."""
    return parse_text(path.read_text(encoding="utf-8"), source or str(path))


def parse_text(text: str, source: str) -> list[Instruction]:
    """Parse the text of a Containerfile; `source` is its name in errors."""
    instructions = [_instruction(source, line, joined) for line, joined in _logical_lines(text)]
    froms = [item for item in instructions if item.keyword == "FROM"]
    if not froms:
        raise Refused(f"{source}:1: there is no FROM")
    if len(froms) > 1:
        raise froms[1].refuse("a second FROM: multi-stage builds are not supported")
    for item in instructions:
        if item is froms[0]:
            break
        if item.keyword != "ARG":
            raise item.refuse(f"{item.keyword} before FROM; only ARG is allowed there")
    return instructions


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return the joined lines, each with its first line number; skip empty lines and comments, even inside a continuation."""
    result: list[tuple[int, str]] = []
    parts: list[str] = []
    begin = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        stripped = raw.strip()
        if stripped.startswith("#") or not stripped:
            continue
        if not parts:
            begin = number
        continued = stripped.endswith("\\")
        parts.append(stripped[:-1].rstrip() if continued else stripped)
        if not continued:
            result.append((begin, " ".join(part for part in parts if part)))
            parts = []
    if parts:
        result.append((begin, " ".join(part for part in parts if part)))
    return result


def _instruction(source: str, line: int, text: str) -> Instruction:
    keyword, _, rest = text.partition(" ")
    keyword = keyword.upper()
    bare = Instruction(source, line, keyword, rest.strip())
    if keyword not in INSTRUCTIONS:
        raise bare.refuse(f"{keyword} is not supported; allowed: {', '.join(sorted(INSTRUCTIONS))}")
    if not bare.text:
        raise bare.refuse(f"{keyword} without an argument")
    if keyword == "RUN" and "<<" in bare.text:
        raise bare.refuse("here-documents are not supported")
    flags: dict[str, str] = {}
    rest = bare.text
    while rest.startswith("--") and keyword != "ARG":
        flag, _, rest = rest.partition(" ")
        name, equals, value = flag[2:].partition("=")
        if name not in FLAGS.get(keyword, ()) or not equals or not value:
            raise bare.refuse(f"{keyword} {flag} is not supported")
        flags[name] = value
        rest = rest.strip()
    return Instruction(source, line, keyword, rest, flags)
