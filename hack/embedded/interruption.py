"""A command that is asked to end takes away what it made, as one that is interrupted does."""

from __future__ import annotations

import signal

# What shells tell of a command that ended by SIGINT.
EXIT_CODE = 130


def heed_termination() -> None:
    """Have SIGTERM raise KeyboardInterrupt in the main thread, as SIGINT does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
