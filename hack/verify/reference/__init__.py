"""Generates the reference pages of `deploy/docs` from the source.

    registrations, collectors ──▶ metrics.md       enum variants, constants ──▶ reasons.md
    struct fields of clap ──────▶ flags.md         events, table of meanings ─▶ events.md
                                                   constants of keys ─────────▶ names.md

Each page has a module. Meanings are the doc comments in the source. Where the source has only a string, a table in the module
has its meaning, and the tests compare that table with the source in both directions.

`python3 -m verify.reference` in `hack` writes the pages. The tests of this package fail if a page differs from the generated
text, or if the source has a reason, an event or a key that is missing from the pages.
"""

from __future__ import annotations

from pathlib import Path

from ..runner import REPOSITORY
from . import events, flags, metrics, names, reasons
from .source import DOCS, WRITE


def metric_names() -> set[str]:
    """Return the names of all metrics."""
    return {metric.name for _, found in metrics.sections() for metric in found}


def pages() -> dict[Path, str]:
    """Return the generated text of each page by path."""
    return {
        DOCS / "metrics.md": metrics.page(metrics.sections()),
        DOCS / "flags.md": flags.page(flags.programs()),
        DOCS / "reasons.md": reasons.page(),
        DOCS / "events.md": events.page(),
        DOCS / "names.md": names.page(),
    }


def stale() -> list[str]:
    """Return a line for each page that is missing or differs from its generated text."""
    return [
        f"{path.relative_to(REPOSITORY)}: the page is outdated; {WRITE} generates it"
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    ]
