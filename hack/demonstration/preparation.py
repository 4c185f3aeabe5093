"""Packages and programs: everything that takes minutes at the first time, before a cluster takes processor time too."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from embedded import prerequisites
from embedded.errors import Failure
from embedded.progress import Progress
from verify.runner import REPOSITORY, interrupt, run

# The profile of Cargo.toml that Drydock is built with.
PROFILE = "fast"
# What `prerequisites` calls the packages that this needs.
PACKAGES = ("cluster", "rust", "images", "guest")


def build(progress: Progress) -> None:
    """Build Kubernetes and Drydock's images side by side: Debian's packages and linkers leave a processor idle.

    What is built already is found in a second.
    """
    prerequisites.check_toolchains(("cargo", "go", "python3"))
    environment = {"PYTHONPATH": str(REPOSITORY / "hack"), "PYTHONDONTWRITEBYTECODE": "1"}
    kubernetes = [sys.executable, "-m", "embedded.build", "--virtctl"]
    with progress.step("building what is not built yet", announce=True), ThreadPoolExecutor(1) as lane:
        running = lane.submit(run, kubernetes, environment, prefix="kubernetes: ")
        try:
            prerequisites.ensure(PACKAGES, progress, toolchains=())
            _, of_images = run([str(REPOSITORY / "hack" / "images"), f"--{PROFILE}"], prefix="images: ")
            _, of_kubernetes = running.result()
        except BaseException:
            interrupt()
            raise
    for what, code in (("Kubernetes", of_kubernetes), ("Drydock's images", of_images)):
        if code != 0:
            raise Failure(f"{what} could not be built; see above")
