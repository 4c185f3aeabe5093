"""Reference pages of `deploy/docs` that are made from the source: metrics and command-line flags.

    registrations, collectors ──▶ deploy/docs/metrics.md      struct fields of clap ──▶ deploy/docs/flags.md

`python3 -m verify.reference` in `hack` writes them; the tests of this package fail if a page is not as it would be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .runner import REPOSITORY

DOCS = REPOSITORY / "deploy" / "docs"
WRITE = "`python3 -m verify.reference` in `hack`"

# Where metrics are made: title, folder, folders below it that are somebody else's.
COMPONENTS = (
    ("Controllers", "controller/src", ()),
    ("Agents", "agent/src", ("agent/src/tunnel",)),
    ("Tunnels", "agent/src/tunnel", ()),
    ("The console in the cluster", "controller/cli/src/console", ()),
    ("Every process", "controller/runtime/src", ()),
)
# What no declaration of a type tells: labels of metrics that are collected as they are scraped.
COLLECTED = {
    "drydock_drain_guests_left": ("node",),
    "drydock_drain_guests_blocked": ("node", "reason"),
    "drydock_drain_estimated_end_timestamp_seconds": ("node",),
    "drydock_maintenance_pods_pending": ("node",),
    "drydock_migration_slots_used": ("scope", "node"),
    "drydock_migration_slots_limit": ("scope",),
    "leader_election_master_status": ("name",),
    "kubevirt_vmi_migration_succeeded": ("namespace", "vmi", "vmim"),
    "kubevirt_vmi_migration_failed": ("namespace", "vmi", "vmim"),
}
# Names and labels of metrics whose type is not that of a named field.
OTHERS = {"drydock_build": ("drydock_build_info", ("component", "version")), "drydock_events": ("drydock_events_total", ("result",))}
# Programs with flags: name, the file of their command line.
PROGRAMS = (("drydock-controller", "controller/src/args.rs"), ("drydock-agent", "agent/src/args.rs"))

_NAME = r'"((?:drydock|kubevirt|process|workqueue|leader)_[a-z0-9_]+)"'
_TEXT = r'"((?:[^"\\]|\\[\s\S])+)"'
_METRIC = re.compile(_NAME + r",\s*(?:" + _TEXT + r"|(\w+)),\s*(Unit::Seconds,\s*)?(?:&?(?:[a-z_]+\.)*?(\w+)(?:\.clone\(\))?[,)\s]|Kind::(\w+))?")
_LOCAL = re.compile(r"let (\w+) = (Counter|Gauge)::default\(\);")
_VARIABLE = re.compile(r"let (\w+) =\s*" + _TEXT + ";")
_HELP_BREAK = re.compile(r"\\\n\s*")
_FIELD = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(\w+): (.+?),?$", re.MULTILINE)
_LABELS = re.compile(r"EncodeLabelSet[^{]*?struct (\w+) \{(.*?)\n\}", re.DOTALL)
_ALIAS = re.compile(r"^type (\w+) = (.+);$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Metric:
    """A metric as a scrape has it."""

    name: str
    labels: tuple[str, ...]
    meaning: str


def metrics(source: str) -> Iterator[Metric]:
    """The metrics that a file registers or encodes."""
    source = source.partition("\n#[cfg(test)]\nmod tests {")[0]
    types: dict[str, str] = {}
    for of, type_ in _FIELD.findall(source):
        # A declaration comes before the values of its fields.
        types.setdefault(of, type_)
    types |= dict(_LOCAL.findall(source))
    variables = dict(_VARIABLE.findall(source))
    labels = {name: tuple(re.findall(r"^\s*(?:pub(?:\([a-z]+\))? )?(\w+):", body, re.MULTILINE)) for name, body in _LABELS.findall(source)}
    aliases = dict(_ALIAS.findall(source))
    for name, text, variable, unit, of, kind in _METRIC.findall(source):
        type_ = types.get(of, "")
        type_ = aliases.get(type_, type_)
        family = re.match(r"Family<(\w+)", type_)
        # The encoder appends the unit, and `_total` to counters.
        shown = name + ("_seconds" if unit else "")
        shown += "_total" if "Counter" in type_ or kind == "Counter" else ""
        declared = labels.get(family[1], ()) if family else ()
        shown, declared = OTHERS.get(name, (shown, declared))
        meaning = _HELP_BREAK.sub("", text or variables.get(variable, ""))
        yield Metric(shown, COLLECTED.get(shown, declared), meaning)


def metrics_page(sections: Iterable[tuple[str, Iterable[Metric]]]) -> str:
    """The page of all metrics."""
    lines = [
        "# Metrics",
        "",
        f"{WRITE} makes this page from the source. Controllers and agents serve metrics on port 8080",
        "at `/metrics`, tunnels on 8081, as OpenMetrics. The leading controller alone exports those of migrations and drains, so that",
        "sums are right. Names that begin with `kubevirt_` are KubeVirt's, with its labels; those of work queues and leader election",
        "are client-go's.",
    ]
    for title, found in sections:
        lines += ["", f"## {title}", "", "| metric | labels | meaning |", "|---|---|---|"]
        for metric in sorted(set(found)):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {labels} | {metric.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


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


def _prose(comment: str) -> str:
    lines = [line.strip().removeprefix("///").strip() for line in comment.strip().splitlines()]
    paragraph = []
    for line in lines:
        if not line:
            break
        paragraph.append(line)
    return " ".join(paragraph)


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
        yield Flag(shown, _prose(comment), default, text.get("env", ""))


def commands(source: str) -> Iterator[Command]:
    """The subcommands of a program."""
    structs = dict(_STRUCT.findall(source))
    enum = re.search(r"enum Command \{\n(.*?)\n\}", source, re.DOTALL)
    for comment, variant, struct in _VARIANT.findall(enum[1] if enum else ""):
        yield Command(re.sub(r"(?<!^)(?=[A-Z])", "-", variant).lower(), _prose(comment), list(flags(source, structs, struct)))


def flags_page(programs: Iterable[tuple[str, Iterable[Command]]]) -> str:
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
                lines.append(f"| `{flag.name}` | {default} | {variable} | {flag.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, list[Metric]]]:
    for title, folder, others in COMPONENTS:
        files = sorted((REPOSITORY / folder).rglob("*.rs"))
        own = [file for file in files if "tests" not in file.stem and not any((REPOSITORY / other) in file.parents for other in others)]
        yield title, [metric for file in own for metric in metrics(file.read_text())]


def metric_names() -> set[str]:
    """The names of all metrics."""
    return {metric.name for _, found in _sections() for metric in found}


def pages() -> dict[Path, str]:
    """Each page as it has to be."""
    programs = [(program, commands((REPOSITORY / file).read_text())) for program, file in PROGRAMS]
    return {DOCS / "metrics.md": metrics_page(_sections()), DOCS / "flags.md": flags_page(programs)}


def stale() -> list[str]:
    """Pages that are not as they have to be."""
    return [
        f"{path.relative_to(REPOSITORY)}: write it anew by {WRITE}"
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    ]


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
