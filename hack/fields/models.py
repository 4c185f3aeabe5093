"""Reads the fields of generated TypeScript types."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oci.progress import Failure

FOLDER = "package/kubevirt/models/"
# This type has metadata and the fields of VirtualMachineInstance.
TEMPLATE = "V1VirtualMachineInstanceTemplateSpec"
# Matches `name?: Type;` in an interface.
DECLARED = re.compile(r"^  (\w+)\??: (.+);$", re.MULTILINE)
# Matches `name: ... json['nameInTheApi'] ...` in the function that reads the type.
READ = re.compile(r"^    (\w+):[^;]*?json\['([^']+)'\]", re.MULTILINE)


@dataclass(frozen=True)
class Models:
    """The types of one version of the package."""

    version: str
    # For each type: the name in the API and the TypeScript type of each field.
    fields: dict[str, dict[str, str]]

    @classmethod
    def of_package(cls, package: Path) -> Models:
        """Read the types from a packed copy of the package."""
        texts: dict[str, str] = {}
        try:
            with tarfile.open(package) as archive:
                for member in archive:
                    if member.name == "package/package.json" or member.name.startswith(FOLDER):
                        content = archive.extractfile(member)
                        texts[member.name] = content.read().decode() if content else ""
        except (OSError, tarfile.TarError) as error:
            raise Failure(f"{package}: {error}") from error
        try:
            version = json.loads(texts.pop("package/package.json"))["version"]
        except (KeyError, ValueError) as error:
            raise Failure(f"{package} is not a packed package: {error}") from error
        fields = {name.removeprefix(FOLDER).removesuffix(".ts"): _fields(text) for name, text in texts.items()}
        return cls(version, fields)

    def paths(self, type_: str, path: str) -> Iterator[str]:
        """Yield the paths of all fields of a type, each below `path`."""
        if type_ not in self.fields:
            raise Failure(f"the package has no type {type_}")
        for name, field in self.fields[type_].items():
            yield from self._paths_of_field(f"{path}.{name}", field)

    def _paths_of_field(self, path: str, type_: str) -> Iterator[str]:
        element = re.fullmatch(r"Array<(.+)>", type_)
        if element:
            path, type_ = f"{path}[]", element[1]
        yield path
        if type_ == TEMPLATE:
            yield f"{path}.metadata"
            yield f"{path}.spec"
        elif type_ in self.fields and not type_.startswith("K8sIo"):
            yield from self.paths(type_, path)


def _fields(text: str) -> dict[str, str]:
    """Return the name in the API and the type of each field of the interface in a file."""
    interface = re.search(r"^export interface \w+ {$(.*?)^}$", text, re.MULTILINE | re.DOTALL)
    if not interface:
        return {}
    names = dict(READ.findall(text))
    return {names.get(field, field): type_ for field, type_ in DECLARED.findall(interface[1])}
