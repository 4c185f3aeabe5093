"""Reference pages of `deploy/docs` that are made from the source.

    registrations, collectors ──▶ metrics.md       enum variants, constants ──▶ reasons.md
    struct fields of clap ──────▶ flags.md         events, table of meanings ─▶ events.md
                                                   constants of keys ─────────▶ names.md

Each page has a module. Meanings are the doc comments of the source; where the source has only a string, a table in the
module has its meaning, and the tests compare that table with the source in both directions.

`python3 -m verify.reference` in `hack` writes the pages; the tests of this package fail if a page is not as it would be
written, or if the source has a reason, an event or a key that no page has.
"""

from __future__ import annotations

from pathlib import Path

from ..runner import REPOSITORY
from . import events, flags, metrics, names, reasons
from .source import DOCS, WRITE


def metric_names() -> set[str]:
    """The names of all metrics."""
    return {metric.name for _, found in metrics.sections() for metric in found}


def pages() -> dict[Path, str]:
    """Each page as it has to be."""
    return {
        DOCS / "metrics.md": metrics.page(metrics.sections()),
        DOCS / "flags.md": flags.page(flags.programs()),
        DOCS / "reasons.md": reasons.page(),
        DOCS / "events.md": events.page(),
        DOCS / "names.md": names.page(),
    }


def stale() -> list[str]:
    """Pages that are not as they have to be."""
    return [
        f"{path.relative_to(REPOSITORY)}: write it anew by {WRITE}"
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    ]
