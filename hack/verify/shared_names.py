"""Types and modules that have the same name in several places: a search for one of them finds the others too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

# Every program has these.
EVERYWHERE = frozenset({"main", "lib", "args", "metrics"})

# Of one concern, the API's fields, core's rules, what the controller or the agent does, and what users see of it may be in
# modules of one name each. More are parts of something, and are named so.
MODULES = 2

_TYPE = re.compile(r"^ *(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|union|trait|type) ([A-Z]\w*)", re.MULTILINE)
_ASSOCIATED = re.compile(r"^ +type \w+", re.MULTILINE)
_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{.*?^\}", re.MULTILINE | re.DOTALL)


def types(text: str) -> list[str]:
    """The types and traits that a file declares outside its tests, but no associated types."""
    return _TYPE.findall(_ASSOCIATED.sub("", _TESTS.sub("", text)))


def shared_types(sources: Mapping[str, str]) -> list[str]:
    """Names of types that more than one file declares, each with its files."""
    places = defaultdict(list)
    for file, text in sorted(sources.items()):
        for name in types(text):
            places[name].append(file)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(places.items()) if len(files) > 1]


def shared_modules(files: Iterable[str]) -> list[str]:
    """Names that more than [`MODULES`] modules have, each with its files."""
    places = defaultdict(list)
    for file in sorted(files):
        places[PurePosixPath(file).stem].append(file)
    return [
        f"{name}: {', '.join(found)}"
        for name, found in sorted(places.items())
        if len(found) > MODULES and name not in EVERYWHERE
    ]
