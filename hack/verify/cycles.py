"""Finds import cycles between the Rust files of a crate.

    use declarations, paths ──▶ file ──▶ files that it imports ──▶ groups of files that import each other

A module is part of its ancestors and may use their items, so imports of an ancestor do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

Module = tuple[str, ...]

# Comments, string literals and inline tests are ignored.
_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)
_INLINE_TESTS = "\n#[cfg(test)]\nmod tests {"
_USE = re.compile(r"\buse\s+([^;]+);")
_PATH = re.compile(r"(?<![:\w.])((?:crate|super|self|[a-z_]\w*)(?:::\w+)+)")


def module_of(path: str, source: str) -> Module:
    """Return the module of a file; `source` is the folder with the sources of its crate."""
    parts = path.removeprefix(source + "/").removesuffix(".rs").split("/")
    return () if parts in (["main"], ["lib"]) else tuple(part for part in parts if part != "mod")


def _leaves(tree: str, before: Module = ()) -> Iterator[Module]:
    """Yield the full paths in the tree of a use declaration."""
    tree = tree.strip()
    opened = tree.find("{")
    if opened < 0:
        name = tree.split(" as ")[0].strip()
        yield before + tuple(part for part in name.split("::") if part)
        return
    prefix = before + tuple(part.strip() for part in tree[:opened].split("::") if part.strip())
    depth, start = 0, opened + 1
    for at in range(opened, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (tree[at] == "," and depth == 1) or (tree[at] == "}" and depth == 0):
            if part := tree[start:at].strip():
                yield from _leaves(part, prefix)
            start = at + 1


def imported(text: str, own: Module, modules: Iterable[Module]) -> set[Module]:
    """Return the modules of its own crate that a file imports, except itself and its ancestors."""
    known = set(modules)
    code = _SKIPPED.sub("", text.split(_INLINE_TESTS)[0])
    paths = [leaf for found in _USE.findall(code) for leaf in _leaves(re.sub(r"\s+", " ", found))]
    paths += [tuple(found.split("::")) for found in _PATH.findall(_USE.sub("", code))]
    found = set()
    for path in paths:
        base, rest = own, list(path)
        if rest[0] == "crate":
            base, rest = (), rest[1:]
        while rest and rest[0] in ("self", "super"):
            base = base[:-1] if rest[0] == "super" else base
            rest = rest[1:]
        full = base + tuple(rest)
        longest = next((full[:length] for length in range(len(full), len(base) - 1, -1) if full[:length] in known), own)
        if longest != own[: len(longest)]:
            found.add(longest)
    return found


def cycles(imports: Mapping[Module, set[Module]]) -> list[list[Module]]:
    """Return the groups of modules that import each other, directly or indirectly."""
    reached: dict[Module, set[Module]] = {}
    for start in imports:
        seen: set[Module] = set()
        left = [start]
        while left:
            for target in imports.get(left.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    left.append(target)
        reached[start] = seen
    groups = {frozenset(other for other in reached[one] if one in reached.get(other, ())) for one in imports if one in reached[one]}
    return sorted(sorted(group) for group in groups)


def crate_cycles(files: Mapping[str, str], source: str) -> list[list[str]]:
    """Return the import cycles of a crate as lists of paths; `files` maps the paths of files below `source` to their texts."""
    paths = {module_of(path, source): path for path in files}
    imports = {module: imported(files[path], module, paths) for module, path in paths.items()}
    return [[paths[module] for module in group] for group in cycles(imports)]
