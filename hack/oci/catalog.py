"""Lists the images and the names under which a cluster pulls them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OWN = "localhost/drydock"
# The disks that KubeVirt's documentation and examples use. All of these names stand for
# the same small guest; a mirror of any registry serves them by repository path.
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
    """An image: its short name, its full names, and its Containerfile if it has one."""

    name: str
    references: tuple[str, ...]
    recipe: Path | None = None


def entries(repository: Path) -> dict[str, Entry]:
    """Return all images by short name: one for each Containerfile, and three for tests."""
    result = {}
    for recipe in sorted((repository / "deploy" / "images").glob("*/Containerfile")):
        name = recipe.parent.name
        result[name] = Entry(name, (f"{OWN}/{name}:dev",), recipe)
    result["busybox"] = Entry("busybox", ("docker.io/library/busybox:latest",))
    disks = tuple(f"docker.io/{disk}:latest" for disk in GUEST_DISKS)
    result["guest"] = Entry("guest", (f"{OWN}/guest:dev", *disks))
    result["bare-guest"] = Entry("bare-guest", (f"{OWN}/bare-guest:dev",))
    return result
