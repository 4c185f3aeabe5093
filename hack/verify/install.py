"""Installs Drydock on an embedded cluster, as a user would: images, then `kubectl apply -k deploy`."""

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

# Guests of an embedded cluster run by emulation: the machine it runs on need not have KVM.
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
    """Build the images and push them to the cluster's registry; `kind` is `--debug`, `--fast` or, as users get them, empty."""
    options = ["--cluster", made.name, *([kind] if kind else [])]
    with progress.step("images", announce=True):
        # An interruption has to end the compilers too.
        _, code = command([str(REPOSITORY / "hack" / "images"), *names, *options])
    if code != 0:
        raise Failure("the images could not be built or pushed; see above")


def overlay(made: Cluster) -> Path:
    """`deploy` with the digests of the images that were built last."""
    folder = Path(made.kubeconfig).parent / "deploy"
    return _overlay(folder, "deploy", ("agent", "controller", "launcher"), fields="image-fields.yaml")


def uninstall_overlay(made: Cluster) -> Path:
    """`deploy/uninstall` with the digests of the images that were built last."""
    return _overlay(Path(made.kubeconfig).parent / "uninstall", "deploy/uninstall", ("agent", "controller"))


def console_overlay(made: Cluster) -> Path:
    """`deploy/console` with the digest of the image that was built last."""
    return _overlay(Path(made.kubeconfig).parent / "console", "deploy/console", ("console",))


def _overlay(folder: Path, manifests: str, names: tuple[str, ...], fields: str = "") -> Path:
    """A folder for `kubectl apply -k` with digests in place of tags.

    Their tag is the same for every build, and a node that has an image by that tag would not fetch the new one.
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
    # JSON is YAML too.
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


def install(made: Cluster, progress: Progress, kind: str = "") -> None:
    """Images of this kind, manifests, and wait until the agent is ready on all nodes and the controller runs.

    Programs for debugging (`--debug`) are built in a minute, where those that users get take ten, and they fail where
    a number overflows or a debug assertion does not hold.
    """
    images(made, progress, kind=kind)
    apply(made, progress)


def apply(made: Cluster, progress: Progress) -> None:
    """Manifests with the images that were built last, and wait as `install` does."""
    with progress.step("kubectl apply -k deploy"):
        made.kubectl(*pages.arguments("deploy/README.md", "kubectl apply -k deploy", {"deploy": str(overlay(made))}))
        made.kubectl("apply", "-f", "-", input=EMULATION)
    with progress.step("agents and controller ready"):
        made.kubectl("-n", "drydock", "rollout", "status", "daemonset/drydock-agent", "--timeout=180s")
        made.kubectl("-n", "drydock", "rollout", "status", "deployment/drydock-controller", "--timeout=180s")
        made.kubectl("wait", "hypervisor", "--all", "--for=condition=Ready", "--timeout=120s")
