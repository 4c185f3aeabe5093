"""Installs Drydock on an embedded cluster as a user would: builds the images, then runs `kubectl apply -k deploy`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from . import pages
from .runner import REPOSITORY
from .runner import run as command

# Guests of an embedded cluster run under emulation, so the machine does not need KVM.
EMULATION = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: kubevirt-config
  namespace: drydock
data:
  debug.useEmulation: "true"
"""


def images(made: Cluster, progress: Progress, names: tuple[str, ...] = (), kind: str = "") -> None:
    """Build the images and push them to the cluster's registry; `kind` is `--debug`, `--fast` or, for release images, empty."""
    options = ["--cluster", made.name, *([kind] if kind else [])]
    with progress.step("images", announce=True):
        # `command` also stops the compilers on an interruption.
        _, code = command([str(REPOSITORY / "hack" / "images"), *names, *options])
    if code != 0:
        raise Failure("the images could not be built or pushed; see above")


def overlay(made: Cluster) -> Path:
    """Create a kustomization of `deploy` with the digests of the most recently built images, and return its folder."""
    folder = Path(made.kubeconfig).parent / "deploy"
    return _overlay(folder, "deploy", ("agent", "controller", "launcher"), fields="image-fields.yaml")


def uninstall_overlay(made: Cluster) -> Path:
    """Create a kustomization of `deploy/uninstall` with the digests of the most recently built images, and return its folder."""
    return _overlay(Path(made.kubeconfig).parent / "uninstall", "deploy/uninstall", ("agent", "controller"))


def console_overlay(made: Cluster) -> Path:
    """Create a kustomization of `deploy/console` with the digest of the most recently built image, and return its folder."""
    return _overlay(Path(made.kubeconfig).parent / "console", "deploy/console", ("console",))


def _overlay(folder: Path, manifests: str, names: tuple[str, ...], fields: str = "") -> Path:
    """Create a folder for `kubectl apply -k` with digests in place of tags, and return its path.

    The tag is the same for every build, so a node that has an image with that tag would not pull the new one.
    """
    cache = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock"))
    digests = json.loads((cache / "images" / "images.json").read_text())
    folder.mkdir(exist_ok=True)
    kustomization: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath((REPOSITORY / manifests).resolve(), folder.resolve())],
        "images": [
            {"name": f"localhost/drydock/{name}", "digest": digests[f"localhost/drydock/{name}:dev"]} for name in names
        ],
    }
    if fields:
        (folder / fields).write_text((REPOSITORY / manifests / fields).read_text())
        kustomization["configurations"] = [fields]
    # JSON is valid YAML.
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


def install(made: Cluster, progress: Progress, kind: str = "") -> None:
    """Build images of this kind, apply the manifests, and wait until the agents on all nodes and the controller are ready.

    Debug builds (`--debug`) take a minute, release builds ten. Debug builds also fail on integer overflow and on failed
    debug assertions.
    """
    images(made, progress, kind=kind)
    apply(made, progress)


def apply(made: Cluster, progress: Progress) -> None:
    """Apply the manifests with the most recently built images, and wait as `install` does."""
    with progress.step("kubectl apply -k deploy"):
        made.kubectl(*pages.arguments("deploy/README.md", "kubectl apply -k deploy", {"deploy": str(overlay(made))}))
        made.kubectl("apply", "-f", "-", input=EMULATION)
    with progress.step("agents and controller ready"):
        made.kubectl("-n", "drydock", "rollout", "status", "daemonset/drydock-agent", "--timeout=180s")
        made.kubectl("-n", "drydock", "rollout", "status", "deployment/drydock-controller", "--timeout=180s")
        made.kubectl("wait", "hypervisor", "--all", "--for=condition=Ready", "--timeout=120s")
