"""A command that is terminated takes away what it made, as one that is interrupted does."""

from __future__ import annotations

import signal

# The exit code that shells report for a command that ended by SIGINT.
EXIT_CODE = 130


def heed_termination() -> None:
    """Have SIGTERM raise KeyboardInterrupt in the main thread, as SIGINT does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
