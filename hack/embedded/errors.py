"""The one exception that ends a command with a reason instead of a traceback."""

from __future__ import annotations


class Failure(Exception):
    """An error that a person can act on: what failed, and the end of its output."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        if not self.detail:
            return self.reason
        indented = "\n".join(f"    {line}" for line in self.detail.rstrip().splitlines())
        return f"{self.reason}\n{indented}"
