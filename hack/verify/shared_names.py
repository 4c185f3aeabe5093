"""Finds types and modules that share a name: a search for one of them would also find the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

# Module names that every program may have.
EVERYWHERE = frozenset({"main", "lib", "args", "metrics"})

# The maximum number of modules with the same name. For one concern, the fields of the API, the rules of core, the work of the
# controller or the agent, and the user interface may be in modules of the same name. Further modules cover a part of something,
# and their names have to state which part.
MODULES = 2

_TYPE = re.compile(r"^ *(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|union|trait|type) ([A-Z]\w*)", re.MULTILINE)
_ASSOCIATED = re.compile(r"^ +type \w+", re.MULTILINE)
_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{.*?^\}", re.MULTILINE | re.DOTALL)


def types(text: str) -> list[str]:
    """Return the types and traits that a file declares outside its tests, except associated types."""
    return _TYPE.findall(_ASSOCIATED.sub("", _TESTS.sub("", text)))


def shared_types(sources: Mapping[str, str]) -> list[str]:
    """Return the names of types that more than one file declares, each with its files."""
    places = defaultdict(list)
    for file, text in sorted(sources.items()):
        for name in types(text):
            places[name].append(file)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(places.items()) if len(files) > 1]


def shared_modules(files: Iterable[str]) -> list[str]:
    """Return the names that more than `MODULES` modules have, each with its files."""
    places = defaultdict(list)
    for file in sorted(files):
        places[PurePosixPath(file).stem].append(file)
    return [
        f"{name}: {', '.join(found)}"
        for name, found in sorted(places.items())
        if len(found) > MODULES and name not in EVERYWHERE
    ]
