"""Generates the page of command-line flags from the fields of clap structs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..runner import REPOSITORY
from .source import WRITE, cell, prose, read

# Programs with flags: the name, and the file that declares the command line.
PROGRAMS = (("drydock-controller", "controller/src/args.rs"), ("drydock-agent", "agent/src/args.rs"))

# The file with the flags of every program.
SHARED = "controller/runtime/src/logs.rs"

# Crates that declare constants for default values, with the folders of their sources.
CRATES = {"drydock_api": "controller/api/src", "drydock_core": "controller/core/src"}

# A function that returns the text of a module for its path, which begins with the crate.
Modules = Callable[[tuple[str, ...]], str]


@dataclass
class Flag:
    """A flag or argument of a command."""

    name: str
    meaning: str
    default: str = ""
    variable: str = ""
    required: bool = False


@dataclass
class Command:
    """A subcommand and its flags."""

    name: str
    meaning: str
    flags: list[Flag] = field(default_factory=list)


_STRUCT = re.compile(r"struct (\w+) \{\n(.*?)\n\}", re.DOTALL)
_ENTRY = re.compile(
    r"((?:^\s*///.*\n)*)^\s*#\[(arg|command)\(((?:[^()\[\]]|\([^()]*\)|\[[^\]]*\])*)\)\]\n(?:^\s*#\[.*\]\n)*^\s*(?:pub(?:\([a-z]+\))? )?(\w+): ([^\n]+?),?$",
    re.MULTILINE,
)
_VARIANT = re.compile(r"((?:^\s*///.*\n)+)^\s*(\w+)\((?:Box<)?(\w+)>?\),$", re.MULTILINE)


def module(path: tuple[str, ...]) -> str:
    """Return the source of a module."""
    crate, *parents = path
    return read("/".join([CRATES[crate], *(parents or ["lib"])]) + ".rs")


def _paths(tree: str) -> Iterator[str]:
    """Yield the paths that a `use` declaration without spaces imports."""
    prefix, brace, rest = tree.partition("{")
    if not brace:
        yield tree
        return
    depth, begin = 0, 0
    for at, char in enumerate(rest):
        if depth == 0 and char in ",}":
            if rest[begin:at]:
                yield from _paths(prefix + rest[begin:at])
            begin = at + 1
        depth += {"{": 1, "}": -1}.get(char, 0)


def constant(path: str, source: str, modules: Modules = module) -> str:
    """Return the value of a constant that a file refers to: a string, or the elements of an array separated by commas."""
    imported = {
        one.rpartition("::")[2]: one
        for tree in re.findall(r"^use ([^;]+);", source, re.MULTILINE)
        for one in _paths(re.sub(r"\s", "", tree))
    }
    *parents, name = imported.get(path, path).split("::")
    text = modules(tuple(parents)) if parents else source
    found = re.search(rf"\bconst {name}: [^=]+=\s*([^;]+);", text)
    if not found:
        raise ValueError(f"there is no constant {path}")
    parts = [part.strip() for part in found[1].strip().strip("[]").split(",") if part.strip()]
    return ",".join(part.strip('"') if part.startswith('"') else constant(part, text, modules) for part in parts)


def _default(options: str, source: str, modules: Modules) -> str:
    """Return the default of a flag as a user would write it; empty without a default."""
    if literal := re.search(r'\bdefault_value\s*=\s*"([^"]*)"', options):
        return literal[1]
    if named := re.search(r"\bdefault_values?(?:_t)?\s*=\s*((?:\w+::)*[A-Z][A-Z0-9_]+)\b", options):
        return constant(named[1], source, modules)
    typed = re.search(r"\bdefault_value_t\s*=\s*([^,]+)", options)
    return typed[1].strip().rpartition("::")[2].lower() if typed else ""


def flags(source: str, structs: dict[str, str], name: str, modules: Modules = module) -> Iterator[Flag]:
    """Yield the flags of a clap struct and of its flattened structs, except hidden flags."""
    for comment, kind, options, of, type_ in _ENTRY.findall(structs.get(name, "")):
        if kind == "command":
            if "flatten" in options:
                yield from flags(source, structs, type_, modules)
            continue
        if re.search(r"\bhide\s*=\s*true\b", options):
            continue
        text = dict(re.findall(r'(\w+)\s*=\s*"([^"]*)"', options))
        value = text.get("value_name", "")
        if re.search(r"\blong\b", options):
            shown = "--" + text.get("long", of.replace("_", "-"))
            shown += f" {value}" if value else ("" if type_ == "bool" else f" {of.upper()}")
        else:
            shown = value or of.upper()
        required = "default_value" not in options and type_ != "bool" and not re.match(r"(Option|Vec)<", type_)
        yield Flag(shown, prose(comment), _default(options, source, modules), text.get("env", ""), required)


def commands(source: str, modules: Modules = module) -> Iterator[Command]:
    """Yield the subcommands of a program."""
    structs = dict(_STRUCT.findall(source))
    enum = re.search(r"enum \w*Command \{\n(.*?)\n\}", source, re.DOTALL)
    for comment, variant, struct in _VARIANT.findall(enum[1] if enum else ""):
        yield Command(re.sub(r"(?<!^)(?=[A-Z])", "-", variant).lower(), prose(comment), list(flags(source, structs, struct, modules)))


def page(programs: Iterable[tuple[str, Iterable[Command]]]) -> str:
    """Return the page of all flags."""
    lines = [
        "# Flags",
        "",
        f"{WRITE} generates this page from the source. Cluster-wide settings are in the",
        "[configuration](configuration.md), not in flags; the flags of `kubectl drydock` are [on its page](kubectl-drydock.md).",
    ]
    for program, found in programs:
        for command in found:
            lines += ["", f"## {program} {command.name}", "", command.meaning]
            if not command.flags:
                continue
            lines += ["", "| flag | default | environment | meaning |", "|---|---|---|---|"]
            for flag in command.flags:
                default, variable = (f"`{text}`" if text else "" for text in (flag.default, flag.variable))
                default = "required" if flag.required else default
                lines.append(f"| `{flag.name}` | {default} | {variable} | {cell(flag.meaning)} |")
    return "\n".join(lines) + "\n"


def programs() -> list[tuple[str, Iterator[Command]]]:
    """Return each program with its subcommands."""
    shared = (REPOSITORY / SHARED).read_text()
    return [(program, commands((REPOSITORY / file).read_text() + shared)) for program, file in PROGRAMS]
