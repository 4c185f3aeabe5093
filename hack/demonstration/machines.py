"""Second part of the demonstration: virtual machines run in pods, report their state, and are restarted.

The machines keep running for the following parts, because booting an emulated guest takes longer than all other steps.
"""

from __future__ import annotations

import json
from typing import Any

from .stage import BOOTED, Stage

ONCE, LASTING = "once", "lasting"

INSTANCE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: {name}
spec:
  evictionStrategy: None
  domain:
    cpu: {cpu}
    resources: {{requests: {{memory: 96Mi}}}}
  volumes:
    - name: root
      containerDisk: {{image: "kubevirt/fedora-cloud-container-disk-demo:latest"}}
"""

FOLDER = "/var/lib/drydock-shared/demo"
MACHINE = f"""
apiVersion: v1
kind: PersistentVolume
metadata: {{name: demo}}
spec:
  capacity: {{storage: 16Mi}}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  hostPath: {{path: {FOLDER}}}
  claimRef: {{namespace: default, name: demo}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: demo}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: demo
  resources: {{requests: {{storage: 16Mi}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: {LASTING}
spec:
  runStrategy: Halted
  template:
    metadata:
      labels: {{app: {LASTING}}}
    spec:
      evictionStrategy: LiveMigrateIfPossible
      domain:
        resources: {{requests: {{memory: 96Mi}}}}
        devices:
          interfaces:
            - name: default
              masquerade: {{}}
              ports: [{{port: 80}}]
      networks:
        - name: default
          pod: {{}}
      volumes:
        - name: root
          containerDisk: {{image: "kubevirt/fedora-cloud-container-disk-demo:latest"}}
        - name: data
          persistentVolumeClaim: {{claimName: demo}}
        - name: init
          cloudInitNoCloud:
            userData: |
              #cloud-config
              password: fedora
              chpasswd: {{ expire: False }}
              drydock: {{ http: 80, count: 1s }}
"""

SERVICE = f"""
apiVersion: v1
kind: Service
metadata:
  name: {LASTING}
spec:
  selector: {{app: {LASTING}}}
  ports: [{{port: 80}}]
"""

# A feature that no emulated CPU has, and few real ones.
FEATURE = "avx512f"
REQUIRED = f"{{features: [{{name: {FEATURE}, policy: require}}]}}"


def show(stage: Stage) -> None:
    """Show all scenes; the machines keep running on the second node."""
    first, second = (node.name for node in stage.cluster.nodes)
    for node in (first, second):
        stage.cluster.in_node(node, ["sh", "-c", f"mkdir -p {FOLDER} && chmod 777 {FOLDER}"])
    with stage.only_on(second):
        _boot(stage)
        _service(stage)
        _comes_back(stage)
    _fits_nowhere(stage)


def _instance(stage: Stage, name: str) -> dict[str, Any]:
    """Return an instance; an empty dictionary if it does not exist."""
    text = stage.cluster.kubectl("get", "vmi", name, "--ignore-not-found", "-o", "json")
    return json.loads(text) if text.strip() else {}


def _condition(found: dict[str, Any], kind: str) -> dict[str, str]:
    conditions = found.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _ready(stage: Stage, name: str, another_than: str = "") -> bool:
    found = _instance(stage, name)
    return _condition(found, "Ready").get("status") == "True" and found["metadata"]["uid"] != another_than


def _boot(stage: Stage) -> None:
    stage.scene(
        "Virtual machines",
        """Manifests as in KubeVirt's documentation: an instance, which runs once, and a machine, which is kept running after an
        unmodified virtctl has started it. Each gets an unprivileged pod, whose log contains the guest's output.""",
    )
    stage.kubectl("apply", "-f", "-", input=INSTANCE.format(name=ONCE, cpu="{model: host-model}"))
    stage.kubectl("apply", "-f", "-", input=MACHINE)
    stage.virtctl("start", LASTING)
    for name, kind in ((ONCE, "an instance"), (LASTING, "a machine")):
        stage.until(f"{name} to run", lambda name=name: _ready(stage, name), f"{kind} was started")  # type: ignore[misc]
    stage.kubectl("get", "vm,vmi", "-o", "wide")
    stage.follow(stage.pod(LASTING), BOOTED, "a guest booted, with its console in the pod's log")
    dialogue = [("login: ", "fedora"), ("assword: ", "fedora"), ("# ", "uname -sr; hostname"), ("# ", "exit"), ("login: ", "")]
    stage.console(LASTING, dialogue, "a user logged in with virtctl console")


def _service(stage: Stage) -> None:
    stage.scene("Reachable like a pod", "The guest has its pod's address, so a Service routes traffic to it as to any pod.")
    stage.kubectl("apply", "-f", "-", input=SERVICE)
    path = f"/api/v1/namespaces/default/services/{LASTING}:80/proxy/healthz"
    stage.until(
        "the guest to respond",
        lambda: "ok" in stage.cluster.kubectl("get", "--raw", path, check=False),
        "a guest responded through a Service",
    )
    stage.kubectl("get", "--raw", path)


def _comes_back(stage: Stage) -> None:
    stage.scene(
        "Restart after the deletion of the pod",
        "The machine's pod is deleted. The guest shuts down cleanly, and the machine, which is to run always, gets a new pod.",
    )
    before = _instance(stage, LASTING)["metadata"]["uid"]
    stage.kubectl("delete", "pod", stage.pod(LASTING))
    stage.until(
        "the machine to run again",
        lambda: _ready(stage, LASTING, another_than=before),
        "a machine whose pod was deleted ran again",
    )
    stage.kubectl("get", "vm,vmi")


def _fits_nowhere(stage: Stage) -> None:
    stage.scene(
        "Why an instance does not start",
        f"An instance requires {FEATURE}, which guests can use on neither node. Its status reports the reason for each node.",
    )
    stage.kubectl("apply", "-f", "-", input=INSTANCE.format(name="picky", cpu=REQUIRED))
    stage.until(
        "the reason to be reported",
        lambda: "message" in _condition(_instance(stage, "picky"), "PodScheduled"),
        "an instance reported why no node can take it",
    )
    message = '-o=jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}'
    stage.kubectl("get", "vmi", "picky", message)
    stage.kubectl("delete", "vmi", "picky")
