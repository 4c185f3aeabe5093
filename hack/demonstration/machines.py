"""Second part of the main job: virtual machines run in pods, report their state, and come back."""

from __future__ import annotations

import json
from typing import Any

from .stage import Stage

INSTANCE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {name}
spec:
  domain:
    cpu: {cpu}
    resources: {{requests: {{memory: 96Mi}}}}
  volumes:
    - name: root
      containerDisk: {{image: "kubevirt/fedora-cloud-container-disk-demo:latest"}}
"""

MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: lasting
spec:
  runStrategy: Halted
  template:
    metadata:
      labels: {app: lasting}
    spec:
      domain:
        resources: {requests: {memory: 96Mi}}
        devices:
          interfaces:
            - name: default
              masquerade: {}
              ports: [{port: 80}]
      networks:
        - name: default
          pod: {}
      volumes:
        - name: root
          containerDisk: {image: "kubevirt/fedora-cloud-container-disk-demo:latest"}
        - name: init
          cloudInitNoCloud:
            userData: |
              #cloud-config
              password: fedora
              chpasswd: { expire: False }
              drydock: { http: 80, count: 1s }
"""

SERVICE = """
apiVersion: v1
kind: Service
metadata:
  name: lasting
spec:
  selector: {app: lasting}
  ports: [{port: 80}]
"""

# A feature that no emulated CPU has, and few real ones.
FEATURE = "avx512f"
REQUIRED = f"{{features: [{{name: {FEATURE}, policy: require}}]}}"


def show(stage: Stage) -> None:
    """All scenes, and everything put back."""
    try:
        _boot(stage)
        _service(stage)
        _comes_back(stage)
        _fits_nowhere(stage)
    finally:
        stage.cluster.kubectl("delete", "service", "lasting", "--ignore-not-found")
    _goes(stage)


def _instance(stage: Stage, name: str) -> dict[str, Any]:
    """An instance; empty while there is none."""
    text = stage.cluster.kubectl("get", "vmi", name, "--ignore-not-found", "-o", "json")
    return json.loads(text) if text.strip() else {}


def _condition(found: dict[str, Any], kind: str) -> dict[str, str]:
    conditions = found.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _ready(stage: Stage, name: str, another_than: str = "") -> bool:
    found = _instance(stage, name)
    return _condition(found, "Ready").get("status") == "True" and found["metadata"]["uid"] != another_than


def _pod(stage: Stage, name: str) -> str:
    """The name of the pod of an instance that runs."""
    selector = f"kubevirt.io/created-by={_instance(stage, name)['metadata']['uid']}"
    return stage.cluster.kubectl("get", "pods", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}")


def _boot(stage: Stage) -> None:
    stage.scene(
        "Virtual machines",
        """Manifests as KubeVirt's documents have them: an instance, which runs once, and a machine, which runs always once
        it is started, by an unmodified virtctl. Each gets a pod without any privilege, whose log is what the guest prints.""",
    )
    stage.kubectl("apply", "-f", "-", input=INSTANCE.format(name="once", cpu="{model: host-model}"))
    stage.kubectl("apply", "-f", "-", input=MACHINE)
    stage.virtctl("start", "lasting")
    for name, kind in (("once", "an instance"), ("lasting", "a machine")):
        stage.until(f"{name} to run", lambda name=name: _ready(stage, name), f"{kind} was started")  # type: ignore[misc]
    stage.kubectl("get", "vm,vmi", "-o", "wide")
    stage.follow(_pod(stage, "lasting"), "drydock-guest ready", "a guest booted, with its console in the pod's log")
    dialogue = [("login: ", "fedora"), ("assword: ", "fedora"), ("# ", "uname -sr; hostname"), ("# ", "exit"), ("login: ", "")]
    stage.console("lasting", dialogue, "a user logged in by virtctl console")


def _service(stage: Stage) -> None:
    stage.scene("Reached like a pod", "The guest has its pod's address, so that a Service leads to it as to anything else.")
    stage.kubectl("apply", "-f", "-", input=SERVICE)
    path = "/api/v1/namespaces/default/services/lasting:80/proxy/healthz"
    stage.until(
        "the guest to respond",
        lambda: "ok" in stage.cluster.kubectl("get", "--raw", path, check=False),
        "a Service led to the guest",
    )
    stage.kubectl("get", "--raw", path)


def _comes_back(stage: Stage) -> None:
    stage.scene(
        "It comes back",
        """Somebody deletes the machine's pod. The guest shuts down in order, and the machine, which is always to run, gets
        another one.""",
    )
    before = _instance(stage, "lasting")["metadata"]["uid"]
    stage.kubectl("delete", "pod", _pod(stage, "lasting"))
    stage.until(
        "the machine to run again",
        lambda: _ready(stage, "lasting", another_than=before),
        "a machine whose pod was deleted ran again",
    )
    stage.kubectl("get", "vm,vmi")


def _fits_nowhere(stage: Stage) -> None:
    stage.scene(
        "Why it does not start",
        f"An instance requires {FEATURE}, which guests can have on neither node. It reports this, node by node, in words.",
    )
    stage.kubectl("apply", "-f", "-", input=INSTANCE.format(name="picky", cpu=REQUIRED))
    stage.until(
        "the reason",
        lambda: "message" in _condition(_instance(stage, "picky"), "PodScheduled"),
        "an instance reported why no node can take it",
    )
    message = '-o=jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}'
    stage.kubectl("get", "vmi", "picky", message)
    stage.kubectl("delete", "vmi", "picky")


def _goes(stage: Stage) -> None:
    stage.scene("And it goes", "Deleting switches a guest off by its power button, and leaves nothing.")
    stage.kubectl("delete", "vm/lasting", "vmi/once")
    stage.until(
        "the pods to be gone",
        lambda: not stage.cluster.kubectl("get", "pods", "-l", "kubevirt.io=virt-launcher", "-o", "name").strip(),
        "machines went, and their pods with them",
    )
