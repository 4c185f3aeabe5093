"""Defines the exception that ends a command with an error message instead of a traceback."""

from __future__ import annotations


class Failure(Exception):
    """An error that the user can act on: a reason and, optionally, the end of the failed command's output."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        if not self.detail:
            return self.reason
        indented = "\n".join(f"    {line}" for line in self.detail.rstrip().splitlines())
        return f"{self.reason}\n{indented}"
