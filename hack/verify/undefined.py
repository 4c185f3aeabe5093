"""Finds undefined names in Python files, which fail only when their line is executed.

    file ──▶ tables of symbols ──▶ global names that are read ──▶ those that neither the module nor Python defines
"""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator

# Names that Python defines in each module.
_OF_MODULES = {"__doc__", "__file__", "__name__", "__package__", "__spec__"}


def names(text: str) -> list[str]:
    """Return the names that a module reads but that are defined nowhere, sorted."""
    top = symtable.symtable(text, "module", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {table.get_name() for table in top.get_children()} | set(dir(builtins)) | _OF_MODULES
    return sorted(set(_read(top)) - defined)


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or is_module):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _read(child)
