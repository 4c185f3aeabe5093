"""Writes the reference pages."""

from . import pages

for path, text in pages().items():
    path.write_text(text)
