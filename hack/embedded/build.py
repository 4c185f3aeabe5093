"""Builds Kubernetes, etcd and containerd from Go modules.

Each module under `hack/kubernetes` lists its programs in `tool` directives. Built
programs are stored under a digest of the module's content, the build flags and the Go
version. So a second run reuses them, and a changed version never uses an old program.

`python3 -m embedded.build` builds the programs of a cluster; with `-v` it prints their locations.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .commands import last_lines, run
from .errors import Failure
from .layout import cache_root
from .progress import Progress

SOURCES = Path(__file__).resolve().parent.parent / "kubernetes"


@dataclass(frozen=True)
class Module:
    """A Go module, and the programs that it must build."""

    name: str
    programs: tuple[str, ...]
    package: str = "tool"
    tags: tuple[str, ...] = ()
    pinned: str = ""
    # Packages whose version variables the linker sets.
    stamped: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return SOURCES / self.name

    def inputs(self) -> list[Path]:
        """Return the files whose content determines the built programs."""
        return sorted(
            path for path in self.folder.iterdir() if path.suffix in (".mod", ".sum", ".go")
        )

    def linker_flags(self) -> str:
        flags = "-s -w"
        if self.pinned:
            for key, value in version_variables(self.pin(), self.stamped).items():
                flags += f" -X {key}={value}"
        return flags

    def pin(self) -> str:
        """Return the version of the pinned dependency in go.mod."""
        for line in (self.folder / "go.mod").read_text().splitlines():
            words = line.removeprefix("require ").split()
            if len(words) >= 2 and words[0] == self.pinned:
                return words[1]
        raise Failure(f"{self.folder / 'go.mod'} does not require {self.pinned}")


# Environment variable for the minor version of Kubernetes, such as 1.35. The default is that of the module `kubernetes`.
VERSION = "DRYDOCK_KUBERNETES"


def kubernetes_versions() -> list[str]:
    """Return the minor versions that have a separate module."""
    return sorted(path.name.removeprefix("kubernetes-") for path in SOURCES.glob("kubernetes-*"))


def kubernetes_module() -> str:
    """Return the name of the module for the version that the environment selects."""
    version = os.environ.get(VERSION, "")
    if not version:
        return "kubernetes"
    if version not in kubernetes_versions():
        raise Failure(f"{VERSION} is {version!r}; allowed: {', '.join(kubernetes_versions())}")
    return f"kubernetes-{version}"


MODULES = (
    Module("etcd", ("etcd",)),
    Module(
        "containerd",
        ("containerd", "containerd-shim-runc-v2", "ctr"),
        tags=("no_btrfs", "no_devmapper", "no_zfs"),
    ),
    Module(
        "kubernetes",
        (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        ),
        pinned="k8s.io/kubernetes",
        stamped=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
    ),
    Module("pause", ("pause",), package="."),
)

# KubeVirt's command-line client, for tests and demonstrations. No cluster needs it.
VIRTCTL = Module(
    "virtctl",
    ("virtctl",),
    package=".",
    pinned="kubevirt.io/kubevirt",
    stamped=("kubevirt.io/client-go/version",),
)

# The descheduler, for tests of its evictions. The module replaces dependencies with the versions that Kubernetes uses, so
# that most packages are compiled only once.
DESCHEDULER = Module("descheduler", ("descheduler",), pinned="sigs.k8s.io/descheduler")

# kustomize, for tests of the commands in the documentation. The version is that of the kustomize in Kubernetes' kubectl.
KUSTOMIZE = Module("kustomize", ("kustomize",), pinned="sigs.k8s.io/kustomize/kustomize/v5")

# Garbage collection of the compilers takes a quarter of a build. All but a few compilers end before they use this much memory.
COMPILER_MEMORY = {"GOGC": "off", "GOMEMLIMIT": "2GiB"}

# Go names a program after the last folder of its package.
_RENAMED = {"server": "etcd"}


def version_variables(version: str, packages: Iterable[str]) -> dict[str, str]:
    """Return the linker variables that the programs' own build would set."""
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {}
    for package in packages:
        stamps[f"{package}.gitVersion"] = version
        stamps[f"{package}.gitMajor"] = major
        stamps[f"{package}.gitMinor"] = minor
        stamps[f"{package}.gitTreeState"] = "clean"
    return stamps


@dataclass(frozen=True)
class Programs:
    """The locations of the built programs."""

    folders: dict[str, Path]

    def __getitem__(self, program: str) -> str:
        try:
            return str(self.folders[program] / program)
        except KeyError:
            raise Failure(f"no module builds {program!r}") from None

    def path_of(self, *programs: str) -> str:
        """Return a PATH value with the folders of these programs."""
        return ":".join(dict.fromkeys(str(self.folders[program]) for program in programs))


def ensure(progress: Progress | None = None) -> Programs:
    """Build the missing programs of a cluster and return the locations of all."""
    chosen = kubernetes_module()
    modules = [replace(module, name=chosen) if module.name == "kubernetes" else module for module in MODULES]
    return _built(modules, progress or Progress())


def virtctl(progress: Progress) -> str:
    """Build virtctl if it is missing, and return its path."""
    return _built((VIRTCTL,), progress)["virtctl"]


def descheduler(progress: Progress) -> str:
    """Build the descheduler if it is missing, and return its path."""
    return _built((DESCHEDULER,), progress)["descheduler"]


def kustomize(progress: Progress) -> str:
    """Build kustomize if it is missing, and return its path."""
    return _built((KUSTOMIZE,), progress)["kustomize"]


def _built(modules: Iterable[Module], progress: Progress) -> Programs:
    folders: dict[str, Path] = {}
    toolchain = run("go", "env", "GOVERSION", environment=_environment()).strip()
    store = cache_root() / "programs"
    store.mkdir(parents=True, exist_ok=True)
    for module in modules:
        folder = store / f"{module.name}-{_digest(module, toolchain)}"
        if not _complete(folder, module):
            with _alone(store / f"{module.name}.lock", progress, module.name):
                if not _complete(folder, module):
                    label = f"building {module.name} {module.pin() if module.pinned else ''}"
                    with progress.step(label.rstrip(), announce=True):
                        _build(module, folder)
        else:
            progress.detail(f"{module.name} is already built in {folder}")
        for program in module.programs:
            folders[program] = folder
    return Programs(folders)


def _complete(folder: Path, module: Module) -> bool:
    return all(os.access(folder / program, os.X_OK) for program in module.programs)


def _digest(module: Module, toolchain: str) -> str:
    summary = hashlib.sha256()
    for path in module.inputs():
        summary.update(f"{path.name}\0".encode())
        summary.update(path.read_bytes())
    words: Sequence[str] = (toolchain, module.package, *module.tags, module.linker_flags())
    summary.update("\0".join(words).encode())
    return summary.hexdigest()[:16]


def _build(module: Module, folder: Path) -> None:
    """Build into a temporary folder, then rename it to the final one."""
    for abandoned in folder.parent.glob(f".{module.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{module.name}-", dir=folder.parent))
    try:
        done = subprocess.run(
            [
                "go",
                "build",
                # No -trimpath: with it, Go would cache a package under the version that go.mod requires instead of the
                # version of its replacement. The descheduler could not reuse packages that were compiled for Kubernetes.
                "-buildvcs=false",
                f"-tags={','.join(module.tags)}",
                # Generate no debug information, because the linker would drop it.
                "-gcflags=all=-dwarf=false",
                f"-ldflags={module.linker_flags()}",
                "-o",
                f"{aside}/",
                module.package,
            ],
            cwd=module.folder,
            env={**_environment(), **COMPILER_MEMORY},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_give_way,
        )
        if done.returncode != 0:
            raise Failure(f"go build of {module.name} failed", last_lines(done.stdout))
        for old, new in _RENAMED.items():
            if (aside / old).exists():
                (aside / old).rename(aside / new)
        if not _complete(aside, module):
            built = sorted(path.name for path in aside.iterdir())
            raise Failure(f"{module.name} should build {module.programs}, but built {built}")
        aside.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _give_way() -> None:
    """Lower the priority, so that compiling does not starve a cluster on the same cores."""
    os.nice(5)


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}


@contextmanager
def _alone(path: Path, progress: Progress, what: str) -> Iterator[None]:
    """Hold a lock, so that only one command builds the module at a time."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"waiting: another command is building {what}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build the requested programs that are missing, and return the exit code."""
    parser = argparse.ArgumentParser(prog="embedded.build", description=__doc__.splitlines()[0])
    parser.add_argument("-v", "--verbose", action="store_true")
    builders = {"cluster": ensure, "virtctl": virtctl, "descheduler": descheduler}
    parser.add_argument(
        "what", nargs="*", default=["cluster"], help=f"{', '.join(builders)}; only tests and demonstrations need the last two"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.what if name not in builders]
    if unknown:
        parser.error(f"unknown program {', '.join(unknown)}; allowed: {', '.join(builders)}")
    progress = Progress(arguments.verbose)
    try:
        for name in arguments.what:
            builders[name](progress)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
