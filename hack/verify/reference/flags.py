"""The page of command-line flags, from the fields of clap's structs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..runner import REPOSITORY
from .source import WRITE, cell, prose

# Programs with flags: name, the file of their command line.
PROGRAMS = (("drydock-controller", "controller/src/args.rs"), ("drydock-agent", "agent/src/args.rs"))


@dataclass
class Flag:
    """A flag or argument of a command."""

    name: str
    meaning: str
    default: str = ""
    variable: str = ""


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


def flags(source: str, structs: dict[str, str], name: str) -> Iterator[Flag]:
    """The flags of a struct of clap's, those of structs that it contains among them."""
    for comment, kind, options, of, type_ in _ENTRY.findall(structs.get(name, "")):
        if kind == "command":
            if "flatten" in options:
                yield from flags(source, structs, type_)
            continue
        text = dict(re.findall(r'(\w+)\s*=\s*"([^"]*)"', options))
        value = text.get("value_name", "")
        if re.search(r"\blong\b", options):
            shown = "--" + text.get("long", of.replace("_", "-"))
            shown += f" {value}" if value else ("" if type_ == "bool" else f" {of.upper()}")
        else:
            shown = value or of.upper()
        default = text.get("default_value", "")
        typed = re.search(r"default_value_t\s*=\s*([^,]+)", options)
        if typed:
            default = typed[1].strip().rpartition("::")[2].lower()
        yield Flag(shown, prose(comment), default, text.get("env", ""))


def commands(source: str) -> Iterator[Command]:
    """The subcommands of a program."""
    structs = dict(_STRUCT.findall(source))
    enum = re.search(r"enum Command \{\n(.*?)\n\}", source, re.DOTALL)
    for comment, variant, struct in _VARIANT.findall(enum[1] if enum else ""):
        yield Command(re.sub(r"(?<!^)(?=[A-Z])", "-", variant).lower(), prose(comment), list(flags(source, structs, struct)))


def page(programs: Iterable[tuple[str, Iterable[Command]]]) -> str:
    """The page of all flags."""
    lines = [
        "# Flags",
        "",
        f"{WRITE} makes this page from the source. Cluster-wide settings are in the",
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
                lines.append(f"| `{flag.name}` | {default} | {variable} | {cell(flag.meaning)} |")
    return "\n".join(lines) + "\n"


def programs() -> list[tuple[str, Iterator[Command]]]:
    """Each program with its subcommands."""
    return [(program, commands((REPOSITORY / file).read_text())) for program, file in PROGRAMS]
