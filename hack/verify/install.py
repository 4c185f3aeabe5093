"""Installs Drydock on an embedded cluster, as a user would: images, then `kubectl apply -k deploy`."""

from __future__ import annotations

import subprocess
import sys

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .runner import REPOSITORY

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


def images(made: Cluster, progress: Progress, names: tuple[str, ...] = ()) -> None:
    """Build the images and push them to the cluster's registry."""
    with progress.step("images", announce=True):
        done = subprocess.run(
            [str(REPOSITORY / "hack" / "images"), *names, "--cluster", made.name], stdout=sys.stderr
        )
    if done.returncode != 0:
        raise Failure("the images could not be built or pushed; see above")


def install(made: Cluster, progress: Progress) -> None:
    """Images, manifests, and wait until the agent is ready on all nodes and the controller runs."""
    images(made, progress)
    with progress.step("kubectl apply -k deploy"):
        made.kubectl("apply", "-k", str(REPOSITORY / "deploy"))
        made.kubectl("apply", "-f", "-", input=EMULATION)
    with progress.step("agents and controller ready"):
        made.kubectl("-n", "drydock", "rollout", "status", "daemonset/drydock-agent", "--timeout=180s")
        made.kubectl("-n", "drydock", "rollout", "status", "deployment/drydock-controller", "--timeout=180s")
        made.kubectl("wait", "hypervisor", "--all", "--for=condition=Ready", "--timeout=120s")
