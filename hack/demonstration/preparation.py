"""Packages and programs: everything that takes minutes at the first time, before a cluster takes processor time too."""

from __future__ import annotations

from embedded import prerequisites, toolchains
from embedded.errors import Failure
from embedded.progress import Progress
from verify.programs import built_meanwhile
from verify.runner import REPOSITORY, run

# The profile of Cargo.toml that Drydock is built with.
PROFILE = "fast"
# What `prerequisites` calls the packages that this needs.
PACKAGES = ("cluster", "rust", "images", "guest")


def build(progress: Progress) -> None:
    """Build Kubernetes and Drydock's images side by side: Debian's packages and linkers leave a processor idle.

    What is built already is found in a second.
    """
    toolchains.check(("cargo", "go", "python3"))
    prerequisites.ensure(("programs",), progress, toolchains=())
    with progress.step("building what is not built yet", announce=True), built_meanwhile("cluster") as kubernetes:
        prerequisites.ensure(PACKAGES, progress, toolchains=())
        _, of_images = run([str(REPOSITORY / "hack" / "images"), f"--{PROFILE}"], prefix="images: ")
        _, of_kubernetes = kubernetes.result()
    for what, code in (("Kubernetes", of_kubernetes), ("Drydock's images", of_images)):
        if code != 0:
            raise Failure(f"{what} could not be built; see above")
