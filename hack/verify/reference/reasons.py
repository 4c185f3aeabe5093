"""Generates the page of conditions and their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from . import events
from .conditions import (
    API,
    INTERNAL,
    KINDS,
    NO_REASONS,
    READ,
    UNSEEN,
    Condition,
    Constants,
    Kind,
    Source,
    Variants,
    Written,
)
from .source import WRITE, arms, constants, files, read, reason_functions, table, variants

# Calls that create a condition, and strings in CamelCase.
_MAKES = re.compile(r"(?<!fn )\b(?:\w+_)?condition\(")
_STRING = re.compile(r'"([A-Z][a-z]+(?:[A-Z]+[A-Za-z]*)?|[A-Z]{2,}[a-z]+[A-Za-z]*)"')

# The beginning of a constant's doc comment that states the use before the meaning.
_USE = re.compile(r"^(?:Reason|Condition|Condition type)(?: of [^:]*| for [^:]*)?: (\w)")


def meaning(comment: str) -> str:
    """Return the meaning in the doc comment of a constant for a reason or a condition."""
    return _USE.sub(lambda found: found[1].upper(), comment).removesuffix(" KubeVirt's name.").removesuffix(" KubeVirt's.")


def owner(source: Variants) -> str:
    """Return the type whose method returns the reasons; empty for a free function."""
    return "" if source.owner == "-" else source.owner or source.enum


def reasons(source: Source) -> dict[str, str]:
    """Return the reasons of a source with their meanings."""
    if isinstance(source, Written):
        return dict(source.meanings)
    if isinstance(source, Constants):
        known = constants(read(source.file))
        return {known[name].value: meaning(known[name].meaning) for name in source.names}
    known_variants = variants(read(source.declared or source.file), source.enum)
    if not source.function:
        return {name: text for name, text in known_variants.items() if name not in source.but}
    found = {}
    for reason, names in arms(read(source.file), owner(source), source.function).items():
        texts = [known_variants[name] for name in names if name in known_variants and name not in source.but]
        if texts:
            found[reason] = " Or: ".join(dict.fromkeys(texts))
    return found


def of_condition(condition: Condition) -> dict[str, str]:
    """Return all reasons of a condition with their meanings."""
    found: dict[str, str] = {}
    for source in condition.sources:
        for reason, text in reasons(source).items():
            # The first meaning counts: the one written for this condition comes first.
            found.setdefault(reason, text)
    return found


def title(condition: Condition) -> tuple[str, str]:
    """Return the type of a condition, or the name of another field, with its meaning."""
    file, _, name = condition.name.partition("::")
    if not name:
        return condition.name, condition.note
    constant = constants(read(file))[name]
    return constant.value, " ".join(text for text in (meaning(constant.meaning), condition.note) if text)


def _sections(kinds: Iterable[Kind]) -> Iterator[str]:
    for kind in kinds:
        yield from ("", f"## {kind.name}")
        if kind.note:
            yield from ("", kind.note)
        for condition in kind.conditions:
            name, text = title(condition)
            code = name if " " in name or kind.name == "Refused requests" else f"`{name}`"
            yield from ("", f"### {code}", *(["", text] if text else []))
            rows = of_condition(condition).items()
            if rows:
                yield from table(("reason", "meaning"), ((f"`{reason}`", text) for reason, text in rows))


def page() -> str:
    """Return the page of all conditions and reasons."""
    lines = [
        "# Conditions and reasons",
        "",
        f"{WRITE} generates this page from the source. `kubectl describe` shows the conditions of an",
        "object, each with a reason from these tables and a message with the details. Reasons are stable and can be used in scripts",
        "and alerts; messages can change. A condition that is not in the status does not apply.",
        *_sections(KINDS),
    ]
    return "\n".join(lines) + "\n"


def sources() -> Iterator[Source]:
    """Yield all sources of the page."""
    for kind in KINDS:
        for condition in kind.conditions:
            yield from condition.sources


def unlisted_functions() -> list[str]:
    """Return functions of reasons that are neither on the page nor in `INTERNAL`, and entries of `INTERNAL` that do not exist."""
    enums = [source for source in sources() if isinstance(source, Variants)]
    covered = {(source.file, f"{owner(source)}::{source.function}".removeprefix("::")) for source in enums}
    internal = {(file, function) for file, functions in INTERNAL.items() for function in functions}
    found = {(file, function) for file in files() for function in reason_functions(read(file))}
    return sorted(f"{file}: {function}" for file, function in (found - covered - internal) | (internal - found))


def missing_strings() -> list[str]:
    """Return reasons missing from the strings of their file, variants without a reason, and items without a meaning."""
    missing = []
    for source in sources():
        if isinstance(source, Written):
            missing += [f"{source.file}: {reason}" for reason in source.meanings if f'"{reason}"' not in read(source.file)]
        else:
            found = reasons(source)
            missing += [f"{source}: nothing found"] if not found else []
            missing += [f"{source.file}: {reason} has no meaning" for reason, text in found.items() if not text]
        if isinstance(source, Variants) and source.function:
            returned = {name for names in arms(read(source.file), owner(source), source.function).values() for name in names}
            every = variants(read(source.declared or source.file), source.enum).keys()
            missing += [f"{source.file}: {source.enum}::{name} has no reason" for name in every - returned - {*source.but}]
    return missing


def camel_case(source: str) -> set[str]:
    """Return the strings in a file that could be reasons."""
    return set(_STRING.findall(source))


def unlisted_strings() -> list[str]:
    """Return strings that could be reasons but are in no table, in files that create conditions or have reasons of the page."""
    shown = NO_REASONS | READ | UNSEEN | {reason for _, _, reason in events.MEANINGS}
    for kind in KINDS:
        for condition in kind.conditions:
            shown |= {title(condition)[0], *of_condition(condition)}
    own = {source.file for source in sources() if not source.file.startswith(API)}
    making = {file for file in files() if file in own or _MAKES.search(read(file))}
    return sorted(f"{file}: {text}" for file in making for text in camel_case(read(file)) - shown)
