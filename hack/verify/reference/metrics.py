"""Generates the page of metrics from the registrations and collectors in the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..runner import REPOSITORY
from .source import WRITE, cell, without_tests

# Where metrics are defined: the title, the folder, and subfolders that belong to another title.
COMPONENTS = (
    ("Controllers", "controller/src", ()),
    ("Agents", "agent/src", ("agent/src/tunnel",)),
    ("Tunnels", "agent/src/tunnel", ()),
    ("The console in the cluster", "controller/cli/src/console", ()),
    ("Every process", "controller/runtime/src", ()),
)
# Labels of metrics that are collected during a scrape. No type declaration shows these labels.
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
# Names, types and labels of metrics whose type is not the type of a named field.
OTHERS = {
    "drydock_build": ("drydock_build_info", "info", ("component", "version")),
    "drydock_events": ("drydock_events_total", "counter", ("result",)),
}
# Types of metrics, by the type names of the client libraries.
KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Info": "info"}

_NAME = r'"((?:drydock|kubevirt|process|workqueue|leader)_[a-z0-9_]+)"'
_TEXT = r'"((?:[^"\\]|\\[\s\S])+)"'
_METRIC = re.compile(_NAME + r",\s*(?:" + _TEXT + r"|(\w+)),\s*(Unit::Seconds,\s*)?(?:&?(?:[a-z_]+\.)*?(\w+)(?:\.clone\(\))?[,)\s]|ProcessMetricType::(\w+))?")
_LOCAL = re.compile(r"let (\w+) = (Counter|Gauge)::default\(\);")
_VARIABLE = re.compile(r"let (\w+) =\s*" + _TEXT + ";")
_HELP_BREAK = re.compile(r"\\\n\s*")
_FIELD = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(\w+): (.+?),?$", re.MULTILINE)
_LABELS = re.compile(r"EncodeLabelSet[^{]*?struct (\w+) \{(.*?)\n\}", re.DOTALL)
_KIND = re.compile(rf"\b({'|'.join(KINDS)})\b")
_ENCODED = re.compile(r"\bMetricType::(\w+)")
_ALIAS = re.compile(r"^type (\w+) = (.+);$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Metric:
    """A metric as it appears in a scrape."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics(source: str) -> Iterator[Metric]:
    """Yield the metrics that a file registers or encodes."""
    source = without_tests(source)
    types: dict[str, str] = {}
    for of, type_ in _FIELD.findall(source):
        # The declaration of a struct comes before the values of its fields, so the first match is the type.
        types.setdefault(of, type_)
    types |= dict(_LOCAL.findall(source))
    variables = list(_VARIABLE.finditer(source))
    labels = {name: tuple(re.findall(r"^\s*(?:pub(?:\([a-z]+\))? )?(\w+):", body, re.MULTILINE)) for name, body in _LABELS.findall(source)}
    aliases = dict(_ALIAS.findall(source))
    for found in _METRIC.finditer(source):
        name, text, variable, unit, of, kind = found.groups("")
        type_ = types.get(of, "")
        type_ = aliases.get(type_, type_)
        family = re.match(r"Family<(\w+)", type_)
        # The encoder appends the unit, and `_total` to counters.
        shown = name + ("_seconds" if unit else "")
        shown += "_total" if "Counter" in type_ or kind == "Counter" else ""
        declared = labels.get(family[1], ()) if family else ()
        # Several functions have variables of the same name: the last assignment before the use counts.
        before = [one[2] for one in variables if one[1] == variable and one.end() <= found.start()]
        shown_type = _KIND.search(type_)
        shown_kind = KINDS.get(shown_type[1] if shown_type else kind or _encoded(source, found.start()), "")
        shown, shown_kind, declared = OTHERS.get(name, (shown, shown_kind, declared))
        if not shown_kind:
            raise ValueError(f"{shown}: the source does not show the type of this metric")
        meaning = _HELP_BREAK.sub("", text or (before[-1] if before else ""))
        yield Metric(shown, shown_kind, COLLECTED.get(shown, declared), meaning)


def _encoded(source: str, at: int) -> str:
    """Return the type of the metric that a collector names at position `at`: the only type in the file, or else the next one."""
    kinds = set(_ENCODED.findall(source))
    following = _ENCODED.search(source, at)
    return kinds.pop() if len(kinds) == 1 else following[1] if following else ""


def page(sections: Iterable[tuple[str, Iterable[Metric]]]) -> str:
    """Return the page of all metrics."""
    lines = [
        "# Metrics",
        "",
        f"{WRITE} generates this page from the source. Controllers and agents serve metrics on port 8080",
        "at `/metrics`, tunnels on 8081, as OpenMetrics. Only the leading controller exports metrics of migrations and drains, so that",
        "sums are correct. Names that begin with `kubevirt_` are KubeVirt's, with its labels; those of work queues and leader election",
        "are client-go's.",
    ]
    for title, found in sections:
        lines += ["", f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for metric in sorted(set(found)):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {cell(metric.meaning)} |")
    return "\n".join(lines) + "\n"


def sections() -> Iterator[tuple[str, list[Metric]]]:
    """Yield the title and the metrics of each component."""
    for title, folder, others in COMPONENTS:
        files = sorted((REPOSITORY / folder).rglob("*.rs"))
        own = [file for file in files if "tests" not in file.stem and not any((REPOSITORY / other) in file.parents for other in others)]
        yield title, [metric for file in own for metric in metrics(file.read_text())]
