"""Parses Rust source for the reference pages: constants, enum variants, their doc comments, and the arms of a `match`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..runner import REPOSITORY

DOCS = REPOSITORY / "deploy" / "docs"
WRITE = "`python3 -m verify.reference` in `hack`"

# Crates whose names and reasons users see. The command-line client and its views only read them and are not listed.
CRATES = (
    "controller/api/src",
    "controller/core/src",
    "controller/runtime/src",
    "controller/src",
    "agent/host/src",
    "agent/launcher/src",
    "agent/src",
)

# Comments, strings and characters.
_NO_CODE = re.compile(r"""//[^\n]*|\br(\#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\[^\n]+?|[^\\'\n])'""", re.DOTALL)
_CONSTANT = re.compile(
    r"((?:^[ ]*///.*\n)*)(?:^[ ]*#\[.*\]\n)*^[ ]*(?:pub(?:\([a-z: ]+\))? )?"
    r"const ([A-Z][A-Z0-9_]*): &(?:'static )?str =\s*\"([^\"\n]*)\";",
    re.MULTILINE,
)
_MODULE = re.compile(r"^(?:pub(?:\([a-z: ]+\))? )?mod (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
# Doc links, [`A`](b) and [`A`], which become plain code.
_LINK = re.compile(r"\[(`[^`\]]+`)\](?:\([^)]*\))?")


@dataclass(frozen=True)
class Constant:
    """A string constant and its doc comment."""

    value: str
    meaning: str


def without_tests(text: str) -> str:
    """Return the text of a file without the tests at its end."""
    return re.split(r"\n(?:/// .*\n)*#\[cfg\(test\)\]\n(?:pub(?:\([a-z]+\))? )?mod \w+ \{", text)[0]


def is_test(file: Path) -> bool:
    """Return whether a file only serves tests."""
    parts = {*file.parts[:-1], file.stem}
    return bool(parts & {"tests", "fake", "fixture", "simulation", "examples", "test_client"}) or file.stem.endswith("_tests")


def files(folders: Iterable[str] = CRATES) -> Iterator[str]:
    """Yield the source files in some folders, relative to the repository, except those of tests."""
    for folder in folders:
        for file in sorted((REPOSITORY / folder).rglob("*.rs")):
            relative = file.relative_to(REPOSITORY)
            if not is_test(relative):
                yield str(relative)


@cache
def read(file: str) -> str:
    """Return the text of a source file without its tests."""
    return without_tests((REPOSITORY / file).read_text())


def prose(comment: str) -> str:
    """Return the first paragraph of a doc comment."""
    lines = [line.strip().removeprefix("///").strip() for line in comment.strip().splitlines()]
    paragraph = []
    for line in lines:
        if not line:
            break
        paragraph.append(line)
    return _LINK.sub(r"\1", " ".join(paragraph))


def cell(text: str) -> str:
    """Escape a text for the cell of a Markdown table."""
    return text.replace("|", "\\|")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]


def constants(text: str) -> dict[str, Constant]:
    """Return the string constants of a file by name; those of an inner module as `module::NAME`."""
    found: dict[str, Constant] = {}
    for module in _MODULE.finditer(text):
        for comment, name, value in _CONSTANT.findall(module[2]):
            found[f"{module[1]}::{name}"] = Constant(value, prose(comment))
    for comment, name, value in _CONSTANT.findall(_MODULE.sub("", text)):
        found[name] = Constant(value, prose(comment))
    return found


def _blanked(text: str) -> str:
    """Return the text with spaces in place of strings and comments, so that only code has braces."""
    return _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def blocks(text: str, head: str) -> Iterator[str]:
    """Yield the text between the braces that follow each match of the regular expression `head`."""
    code = _blanked(text)
    for found in re.finditer(head, code, re.MULTILINE):
        begin = code.index("{", found.end())
        depth = 0
        for at in range(begin, len(code)):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            if depth == 0:
                yield text[begin + 1 : at]
                break


def block(text: str, head: str) -> str:
    """Return the first such block; empty without a match."""
    return next(blocks(text, head), "")


def variants(text: str, enum: str) -> dict[str, str]:
    """Return the variants of an enum with the first paragraphs of their doc comments."""
    body = block(text, rf"\benum {enum}\b")
    found: dict[str, str] = {}
    depth, comment = 0, ""
    for line, code in zip(body.splitlines(), _blanked(body).splitlines(), strict=True):
        if depth == 0 and line.strip().startswith("///"):
            comment += line + "\n"
        elif depth == 0 and (name := re.match(r"\s*([A-Z]\w*)\b", code)):
            found[name[1]] = prose(comment)
            comment = ""
        depth += sum(code.count(char) for char in "({[") - sum(code.count(char) for char in ")}]")
    return found


_ARM = re.compile(r"((?:\w+::\w+(?:\s*\{[^}]*\}|\([^)]*\))?\s*\|?\s*)+)=>\s*\{?\s*(?:\"(\w+)\"|([A-Z][A-Z_]+)\b(?!:))")


def arms(text: str, owner: str, function: str) -> dict[str, list[str]]:
    """Return the reasons that a function returns, each with its variants. `owner` is the type of a method, or empty."""
    scope = "\n".join(blocks(text, rf"^impl {owner}\b")) if owner else text
    body = block(scope, rf"\bfn {function}\b")
    known = {name.rpartition("::")[2]: constant.value for name, constant in constants(text).items()}
    found: dict[str, list[str]] = {}
    for patterns, literal, constant in _ARM.findall(body):
        reason = literal or known.get(constant) or named(constant)
        found.setdefault(reason, []).extend(re.findall(r"\w+::([A-Z]\w*)", patterns))
    return found


@cache
def everywhere() -> dict[str, set[str]]:
    """Return the values of all string constants by name."""
    found: dict[str, set[str]] = {}
    for file in files():
        for name, constant in constants(read(file)).items():
            found.setdefault(name.rpartition("::")[2], set()).add(constant.value)
    return found


def named(name: str) -> str:
    """Return the value of the constants of this name. Raises ValueError if their values differ."""
    values = everywhere()[name]
    if len(values) != 1:
        raise ValueError(f"{name} has several values: {sorted(values)}")
    return next(iter(values))


_REASON = re.compile(
    r"^(?:impl(?:<[^>]*>)? (?:\w+ for )?(\w+)|\}|\s*(?:pub(?:\([a-z]+\))? )?fn ((?:\w+_)?reason)\([^)]*\) -> &(?:'static )?str)",
    re.MULTILINE,
)


def reason_functions(text: str) -> Iterator[str]:
    """Yield the functions in a file that return a reason, as `Type::reason` or `some_reason`."""
    owner = ""
    for found in _REASON.finditer(text):
        if found[2]:
            yield f"{owner}::{found[2]}" if owner else found[2]
        else:
            owner = found[1] or ""
