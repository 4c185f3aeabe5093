"""Writes files atomically."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str | bytes, mode: int = 0o644) -> Path:
    """Replace a file atomically, unless it already has this content, and return its path."""
    content = text.encode() if isinstance(text, str) else text
    try:
        if path.read_bytes() == content:
            return path
    except OSError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(fresh, path)
    return path
