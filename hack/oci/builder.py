"""Builds an image from a Containerfile layer by layer, and reuses unchanged layers.

A layer's key is a hash of everything it depends on: the layer below, the
instruction with its variables, the environment, and the content of copied
files. A change therefore rebuilds only the layers that follow it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oci import layer as layers
from oci import sandbox
from oci.containerfile import Instruction, parse
from oci.debian import CLEAN, EXCLUDES, Mirror
from oci.layer import Layer
from oci.layout import Image
from oci.progress import step

# Version of the cache keys, which must be increased when the meaning of the same instructions changes.
FORMAT = 1
SHOWN = 60


def key_of(*parts: object) -> str:
    """Return the cache key of a result that depends on exactly these parts."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True, default=str).encode()).hexdigest()[:32]


def content_key(path: Path) -> str:
    """Return a key of a file or folder that covers names, file modes and content, but no times or owners."""
    if path.is_symlink():
        return key_of("link", os.readlink(path))
    if path.is_dir():
        return key_of("folder", [(entry.name, content_key(entry)) for entry in sorted(path.iterdir())])
    return key_of("file", path.stat().st_mode & 0o777, layers.digest_of(path)[0])


@dataclass
class LayerCache:
    """A cache of finished layers: the changed files, on which builds continue, and the blob to push."""

    folder: Path
    compression: str = layers.COMPRESSION

    def path(self, key: str) -> Path:
        """Return the path of the layer with this key, whether it exists or not."""
        return self.folder / "layers" / f"{key}-{self.compression}"

    def find(self, key: str) -> Layer | None:
        """Return a finished layer and record that it was used, or return None if it does not exist."""
        description = self.path(key) / "layer.json"
        if not description.exists():
            return None
        os.utime(self.path(key))
        return Layer.load(description)

    def make(self, key: str, title: str, fill: Callable[[Path], Path]) -> Layer:
        """Return the layer with this key; if there is none, pack it from the folder that `fill` creates."""
        found = self.find(key)
        if found:
            return found
        scratch = self.folder / "work" / key
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        root = fill(scratch)
        made = layers.pack(root, scratch / "blob", title, self.compression)
        made.save(scratch / "layer.json")
        if root != scratch / "root":
            root.rename(scratch / "root")
        for left in scratch.iterdir():
            if left.name not in ("root", "blob", "layer.json"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        place = self.path(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        scratch.rename(place)
        return Layer.load(place / "layer.json")


@dataclass
class Built:
    """An image, with the state that later instructions or a FROM of this image need."""

    image: Image
    key: str
    roots: list[Path]
    user: str = ""
    workdir: str = "/"
    suite: str = ""
    environment: dict[str, str] = field(default_factory=dict)


class Builder:
    """An interpreter of one Containerfile's instructions."""

    def __init__(
        self,
        cache: LayerCache,
        context: Path,
        logs: Path,
        arguments: Mapping[str, str],
        base: Callable[[str], Built | None],
        locate: Callable[[str], Path] | None = None,
    ) -> None:
        self.cache = cache
        self.context = context
        self.logs = logs
        self.given = arguments
        self.base = base
        self.locate = locate or (lambda source: context / source)
        self.variables: dict[str, str] = {}
        self.arguments: dict[str, str] = {}
        self.built = Built(Image([]), "", [])
        self.name = ""

    def build(self, name: str, path: Path) -> Built:
        """Build the image of a Containerfile."""
        self.name = name
        try:
            source = str(path.relative_to(self.context))
        except ValueError:
            source = str(path)
        for item in parse(path, source):
            getattr(self, f"do_{item.keyword.lower()}")(item)
        return self.built

    def do_arg(self, item: Instruction) -> None:
        """Declare a build argument."""
        name, equals, default = item.text.partition("=")
        value = self.given.get(name, item.expand(default.strip("\"'"), self.variables) if equals else None)
        if value is None:
            raise item.refuse(f"ARG {name} has no default and no value was given")
        self.variables[name] = self.arguments[name] = value

    def do_from(self, item: Instruction) -> None:
        """Start from scratch, from a slim Debian root or from another image of deploy/images."""
        reference = item.expand(item.text, self.variables)
        if reference.startswith("debian:") and reference.endswith("-slim"):
            suite = reference.removeprefix("debian:").removesuffix("-slim")
            self.built = self._debian(suite, reference)
        elif reference != "scratch":
            base = self.base(reference)
            if base is None:
                raise item.refuse(
                    f"FROM {reference}: allowed: scratch, debian:SUITE-slim and images of deploy/images"
                )
            settings = json.loads(json.dumps(base.image.settings))
            image = Image(list(base.image.layers), settings, list(base.image.history))
            self.built = replace(
                base, image=image, roots=list(base.roots), environment=dict(base.environment)
            )
        else:
            self.built = Built(Image([]), key_of("scratch"), [])
        # An ARG before FROM applies only to FROM, as with a container engine.
        self.arguments = {}
        self.variables = dict(self.built.environment)

    def do_run(self, item: Instruction) -> None:
        """Run a command in the image."""
        command = item.exec_form() or ["/bin/sh", "-c", item.text]
        environment = self.arguments | self.built.environment
        description = {
            "kind": "run",
            "command": command,
            "env": sandbox.build_environment(environment),
            "user": self.built.user,
            "workdir": self.built.workdir,
        }
        key = key_of(self.built.key, "run", command, environment, self.built.user, self.built.workdir)
        self._layer(item, key, description, f"RUN {item.text}")

    def do_copy(self, item: Instruction) -> None:
        """Copy files from the build context into the image."""
        words = item.exec_form() or item.words()
        words = [item.expand(word, self.variables) for word in words]
        if len(words) < 2:
            raise item.refuse("COPY requires at least one source and a target")
        *sources, target = words
        for source in sources:
            if source.startswith("/") or ".." in Path(source).parts or any(sign in source for sign in "*?["):
                raise item.refuse(f"COPY {source}: a source must be a plain path inside the build context")
            if not self.locate(source).exists():
                raise item.refuse(f"COPY {source}: there is no such file")
        chmod = item.expand(item.flags.get("chmod", ""), self.variables)
        if chmod and not all(digit in "01234567" for digit in chmod):
            raise item.refuse(f"--chmod={chmod}: must be an octal number")
        description = {
            "kind": "copy",
            "context": str(self.context),
            "sources": [os.path.relpath(self.locate(source), self.context) for source in sources],
            "target": target,
            "workdir": self.built.workdir,
            "chown": item.expand(item.flags.get("chown", ""), self.variables),
            "chmod": chmod,
        }
        contents = [(source, content_key(self.locate(source))) for source in sources]
        facts = {name: description[name] for name in ("target", "workdir", "chown", "chmod")}
        self._layer(
            item, key_of(self.built.key, "copy", contents, facts), description, f"COPY {' '.join(words)}"
        )

    def do_workdir(self, item: Instruction) -> None:
        """Create a folder, and make it the working directory of later instructions and of the container."""
        self.built.workdir = os.path.join(self.built.workdir, item.expand(item.text, self.variables))
        self.built.image.settings["WorkingDir"] = self.built.workdir
        description = {"kind": "workdir", "workdir": self.built.workdir}
        key = key_of(self.built.key, "workdir", self.built.workdir)
        self._layer(item, key, description, f"WORKDIR {item.text}")

    def do_env(self, item: Instruction) -> None:
        """Set environment variables of the image."""
        pairs = item.pairs(self.variables)
        self.built.environment |= pairs
        self.variables |= pairs
        self._setting(item, "Env", [f"{name}={value}" for name, value in self.built.environment.items()])

    def do_label(self, item: Instruction) -> None:
        """Add labels to the image."""
        labels = self.built.image.settings.get("Labels", {}) | item.pairs(self.variables)
        self._setting(item, "Labels", labels)

    def do_user(self, item: Instruction) -> None:
        """Set the user of later RUN instructions and of the container."""
        self.built.user = item.expand(item.text, self.variables)
        self._setting(item, "User", self.built.user)

    def do_entrypoint(self, item: Instruction) -> None:
        """Set the command that a container starts, and reset CMD."""
        self.built.image.settings.pop("Cmd", None)
        self._setting(item, "Entrypoint", item.exec_form() or ["/bin/sh", "-c", item.text])

    def do_cmd(self, item: Instruction) -> None:
        """Set the default arguments of the entry point."""
        self._setting(item, "Cmd", item.exec_form() or ["/bin/sh", "-c", item.text])

    def _setting(self, item: Instruction, name: str, value: Any) -> None:
        self.built.image.settings[name] = value
        self.built.image.history.append({"created_by": f"{item.keyword} {item.text}", "empty_layer": True})

    def _debian(self, suite: str, reference: str) -> Built:
        """Create the first layer from Debian's packages."""
        title = f"FROM {reference}"

        def fill(scratch: Path) -> Path:
            with step(f"{self.name}: {title}", long=True):
                root = scratch / "root"
                Mirror.of_this_machine(suite).make_slim_root(root, scratch)
                return root

        key = key_of("debian", suite, EXCLUDES, CLEAN)
        made = self.cache.make(key, title, fill)
        settings = {"Env": [f"PATH={sandbox.build_environment({})['PATH']}"], "Cmd": ["/bin/sh"]}
        return Built(
            Image([made], settings, [{"created_by": title}]),
            key,
            [self.cache.path(key) / "root"],
            suite=suite,
            environment={"PATH": sandbox.build_environment({})["PATH"]},
        )

    def _layer(self, item: Instruction, key: str, description: dict[str, Any], title: str) -> None:
        def fill(scratch: Path) -> Path:
            shown = title if len(title) <= SHOWN else title[: SHOWN - 1] + "…"
            with step(f"{self.name}: {shown}", long="apt-get" in title):
                log = self.logs / f"{self.name}-{item.line}.log"
                what = f"{item.source}:{item.line}: {item.keyword}"
                wanted = self.built.suite and description["kind"] == "run"
                mirror = Mirror.of_this_machine(self.built.suite) if wanted else None
                return sandbox.change(self.built.roots, scratch, description, mirror, log, what)

        made = self.cache.make(key, title, fill)
        self.built.image.layers.append(made)
        self.built.image.history.append({"created_by": title})
        self.built.roots.append(self.cache.path(key) / "root")
        self.built.key = key
