"""Installs packages and builds programs. This takes minutes for the first time; a cluster would compete for the processors."""

from __future__ import annotations

from embedded import prerequisites, toolchains
from embedded.errors import Failure
from embedded.progress import Progress
from verify.programs import built_meanwhile
from verify.runner import REPOSITORY, run

# Profile in Cargo.toml with which Drydock is built.
PROFILE = "fast"
# Groups of packages in `prerequisites` that the demonstration needs.
PACKAGES = ("cluster", "rust", "images", "guest")


def build(progress: Progress) -> None:
    """Build Kubernetes and Drydock's images in parallel, because installing packages and linking leave a processor idle.

    If everything is built already, this takes a second.
    """
    toolchains.check(("cargo", "go", "python3"))
    prerequisites.ensure(("programs",), progress, toolchains=())
    with progress.step("building missing programs and images", announce=True), built_meanwhile("cluster") as kubernetes:
        prerequisites.ensure(PACKAGES, progress, toolchains=())
        _, of_images = run([str(REPOSITORY / "hack" / "images"), f"--{PROFILE}"], prefix="images: ")
        _, of_kubernetes = kubernetes.result()
    for what, code in (("Kubernetes", of_kubernetes), ("Drydock's images", of_images)):
        if code != 0:
            raise Failure(f"{what} could not be built; see above")
