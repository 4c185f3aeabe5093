"""Which images there are, and under which names a cluster finds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OWN = "localhost/drydock"
# The base is also what launcher pods start from while they have no recipe of their own.
ALIASES = {"base": ("launcher-base",)}
# The disks that KubeVirt's documentation and examples use. All of them are the
# one small guest; a mirror of any registry serves them by repository path.
DEMO_DISKS = (
    "kubevirt/alpine-container-disk-demo",
    "kubevirt/alpine-with-test-tooling-container-disk",
    "kubevirt/cirros-container-disk-demo",
    "kubevirt/cirros-custom-container-disk-demo",
    "kubevirt/cirros-registry-disk-demo",
    "kubevirt/fedora-cloud-container-disk-demo",
    "kubevirt/fedora-cloud-registry-disk-demo",
    "kubevirt/fedora-with-test-tooling-container-disk",
)
GUEST_DISKS = (*DEMO_DISKS, "containerdisks/fedora", "containerdisks/ubuntu", "containerdisks/debian")


@dataclass(frozen=True)
class Entry:
    """One image: how it is made and what it is called."""

    name: str
    references: tuple[str, ...]
    recipe: Path | None = None


def entries(repository: Path) -> dict[str, Entry]:
    """Return all images: one for each Containerfile, and the three made for tests."""
    result = {}
    for recipe in sorted((repository / "deploy" / "images").glob("*/Containerfile")):
        name = recipe.parent.name
        names = (name, *ALIASES.get(name, ()))
        result[name] = Entry(name, tuple(f"{OWN}/{called}:dev" for called in names), recipe)
    result["busybox"] = Entry("busybox", ("docker.io/library/busybox:latest",))
    disks = tuple(f"docker.io/{disk}:latest" for disk in GUEST_DISKS)
    result["guest"] = Entry("guest", (f"{OWN}/guest:dev", *disks))
    result["bare-guest"] = Entry("bare-guest", (f"{OWN}/bare-guest:dev",))
    return result
