"""Build Drydock's images without a container engine, and push them.

Reuses the layers that did not change. Writes each image as an OCI archive to
<cache>/images/NAME.oci.tar; images.json in the same folder maps every image name
to its digest. The cache is DRYDOCK_CACHE, by default /var/cache/drydock.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from pathlib import Path

from guest import bare, disk
from oci import binaries, busybox, catalog, containerdisk, tools
from oci.builder import Builder, Built, LayerCache
from oci.layout import write_archive
from oci.progress import Failure, note, size, step
from oci.registry import Registry

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SUITE = "trixie"
UNUSED_DAYS = 7


class Images:
    """The images of one run, each built at most once."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.logs = folder / "logs"
        self.cache = LayerCache(folder)
        self.entries = catalog.entries(REPOSITORY)
        self.built: dict[str, Built] = {}

    def by_reference(self, reference: str) -> Built | None:
        """Return the image that a FROM instruction references; build it if necessary. Return None if no recipe builds it."""
        for entry in self.entries.values():
            if reference in entry.references and entry.recipe:
                return self.build(entry.name)
        return None

    def build(self, name: str) -> Built:
        """Build one image and write its archive."""
        if name not in self.built:
            self.built[name] = self._make(name)
        return self.built[name]

    def _make(self, name: str) -> Built:
        entry = self.entries[name]
        if name == "busybox":
            made = busybox.build(self.cache, SUITE)
        elif name == "guest":
            made = containerdisk.build(self.cache, disk.build(self.folder / "guest", SUITE))
        elif name == "bare-guest":
            made = containerdisk.build(self.cache, bare.build(self.folder / "bare-guest"))
        else:
            assert entry.recipe is not None
            arguments = {"PROFILE": binaries.folder_of(self.options.profile), "SUITE": SUITE}
            builder = Builder(self.cache, REPOSITORY, self.logs, arguments, self.by_reference, self._locate)
            made = builder.build(name, entry.recipe)
        archive, state = self.folder / f"{name}.oci.tar", self.folder / f"{name}.digest"
        wanted = " ".join((made.image.digest, *entry.references))
        if not archive.exists() or not state.exists() or state.read_text() != wanted:
            with step(f"{name}: archive, {size(made.image.size)} in {len(made.image.layers)} layers"):
                write_archive(made.image, entry.references, archive)
                state.write_text(wanted)
        return made

    def _locate(self, source: str) -> Path:
        """Return the path of a COPY source; `target` stands for cargo's target folder, which may be outside the repository."""
        first, _, rest = source.partition("/")
        return binaries.target_folder(REPOSITORY) / rest if first == "target" else REPOSITORY / source

    def summary(self) -> None:
        """Add the digest of every name of the built images to images.json."""
        path = self.folder / "images.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        for name, made in self.built.items():
            known |= {reference: made.image.digest for reference in self.entries[name].references}
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")

    def sweep(self) -> None:
        """Remove layers that no build has used for UNUSED_DAYS days."""
        oldest = time.time() - UNUSED_DAYS * 86400
        for folder in (self.folder / "layers").glob("*"):
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder)


def registry_of(cluster: str) -> str:
    """Return the address of an embedded cluster's registry."""
    state = Path(os.environ.get("DRYDOCK_STATE", "/var/lib/drydock-embedded")) / cluster / "cluster.json"
    try:
        return str(json.loads(state.read_text())["registry"])
    except FileNotFoundError as error:
        raise Failure(f"there is no cluster {cluster}: {state} does not exist (hack/up creates one)") from error
    except (ValueError, KeyError) as error:
        raise Failure(f"{state} contains no address of a registry") from error


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="hack/images", description=(__doc__ or "").partition("\n")[0])
    known = catalog.entries(REPOSITORY)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; default: all")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--push", metavar="REGISTRY", help="push to the registry at HOST:PORT (plain HTTP)")
    where.add_argument("--cluster", metavar="NAME", help="push to the registry of this embedded cluster")
    profiles = parser.add_mutually_exclusive_group()
    profiles.add_argument(
        "--debug",
        action="store_const",
        dest="profile",
        const="dev",
        default="release",
        help="use unoptimized programs with debug assertions and overflow checks, which build fastest",
    )
    profiles.add_argument(
        "--fast",
        action="store_const",
        dest="profile",
        const="fast",
        help="use programs for demonstrations: unoptimized, without debug assertions and overflow checks",
    )
    parser.add_argument(
        "--skip-build", action="store_true", help="use the existing programs without running cargo"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="delete the cached layers and guest disk, to use Debian's current packages"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown image {', '.join(unknown)}; allowed: {', '.join(known)}")
    options.names = options.names or list(known)
    return options


def work(options: argparse.Namespace) -> None:
    """Build, archive and push the requested images."""
    if os.geteuid():
        raise Failure("building images requires root privileges for chroots and mounts")
    folder = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock")) / "images"
    folder.mkdir(parents=True, exist_ok=True)
    registry = registry_of(options.cluster) if options.cluster else options.push
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with step("waiting for another hack/images"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        tools.ensure(folder / "logs")
        if options.fresh:
            shutil.rmtree(folder / "layers", ignore_errors=True)
            shutil.rmtree(folder / "guest", ignore_errors=True)
        images = Images(options, folder)
        recipes = [entry.recipe for name in options.names if (entry := images.entries[name]).recipe]
        if not options.skip_build:
            binaries.build(
                REPOSITORY, binaries.named_by(recipes), options.profile, folder / "logs" / "cargo.log"
            )
        for name in options.names:
            images.build(name)
        images.summary()
        if registry:
            push(images, options.names, Registry(registry))
        images.sweep()


def push(images: Images, names: list[str], registry: Registry) -> None:
    """Push each image under all its names."""
    for name in names:
        before = registry.sent
        image = images.built[name].image
        with step(f"push {images.entries[name].references[0]} to {registry.base}"):
            fresh = [registry.push(image, reference) for reference in images.entries[name].references]
        if any(fresh):
            note(
                f"        {image.digest}, {sum(fresh)} of {len(fresh)} names new, {size(registry.sent - before)} sent"
            )


def main() -> None:
    """Run the command."""
    begin = time.monotonic()
    options = parse(sys.argv[1:])
    try:
        work(options)
    except Failure as failure:
        sys.exit(f"hack/images: {failure}")
    except KeyboardInterrupt:
        sys.exit("hack/images: interrupted")
    note(f"{time.monotonic() - begin:6.1f}s in total: {', '.join(options.names)}")


if __name__ == "__main__":
    main()
