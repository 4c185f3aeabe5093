"""First part of the demonstration: nodes report which features guests can use on them, and the scheduler uses these reports."""

from __future__ import annotations

from collections import Counter

from measure.pods import pod_of

from .stage import Stage

OWNED = (".node.kubevirt.io/", "cpu-minimum.node.drydock.dev/", "node-labeller.kubevirt.io/")

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  nodeSelector:
    {label}: "true"
  terminationGracePeriodSeconds: 0
  containers:
    - name: sleep
      image: busybox
      command: [sleep, "3600"]
"""

CONFIGURATION = """
apiVersion: hco.kubevirt.io/v1beta1
kind: HyperConverged
metadata:
  name: kubevirt-hyperconverged
  namespace: drydock
spec:
  obsoleteCPUs:
    cpuModels: [{model}]
    minCPUModel: {minimum}
"""


def show(stage: Stage) -> None:
    """Show all scenes, and restore the initial state after each of them."""
    first, second = (node.name for node in stage.cluster.nodes)
    _facts(stage, first)
    _scheduler(stage, first, second)
    _configuration(stage, first)
    _opt_out(stage, first, second)
    _tampering(stage, first)


def _cpu_labels(stage: Stage, node: str) -> dict[str, str]:
    return {key: value for key, value in stage.labels(node).items() if any(part in key for part in OWNED)}


def _facts(stage: Stage, node: str) -> None:
    stage.scene(
        "Capabilities of the nodes",
        """An agent on each node has queried the processor, the kernel, and the same libvirt and QEMU that guests will run
        with. One object for each node contains the results.""",
    )
    stage.kubectl("get", "nodes")
    stage.kubectl("get", "hypervisors", "-o", "wide")
    pod = pod_of(stage.cluster, "drydock-agent", node)
    stage.kubectl("-n", "drydock", "exec", pod, "--", "drydock-agent", "inspect", "--allow-emulation")
    stage.kubectl("-n", "drydock", "exec", pod, "--", "drydock-agent", "inspect", "--allow-emulation", "--explain", "Haswell")
    labels = _cpu_labels(stage, node)
    print("\n  Labels for the scheduler, by kind:")
    for kind, count in sorted(Counter(key.split("/")[0] for key in labels).items()):
        print(f"    {count:4}  {kind}/...")
    stage.note(f"{node} has {len(labels)} correct CPU labels")


def _scheduler(stage: Stage, first: str, second: str) -> None:
    stage.scene(
        "The scheduler uses the labels",
        f"""{second} is configured not to offer AVX2 and AES, as an administrator would do to give all nodes of
        a mixed cluster the same features. The labels of these features and of each CPU model that needs one of them are
        removed, and pods that require these labels are scheduled to {first}.""",
    )
    before = _cpu_labels(stage, second)
    stage.kubectl("annotate", "node", second, "drydock.dev/mask-cpu-features=avx2,aes")
    feature = "cpu-feature.node.kubevirt.io/avx2"
    stage.until(f"the labels of {second} to change", lambda: feature not in stage.labels(second), "a masked label was removed")
    lost = sorted(before.keys() - _cpu_labels(stage, second).keys())
    print("  removed labels: " + ", ".join(key.split("/")[1] + (" (model)" if key.startswith("cpu-model.") else "") for key in lost[:12]))
    model = next((key for key in lost if key.startswith("cpu-model.")), feature)
    for name, label in (("wants-avx2", feature), ("wants-model", model)):
        stage.kubectl("apply", "-f", "-", input=POD.format(name=name, label=label))
        stage.until(
            f"pod {name} to be scheduled to {first}",
            lambda name=name: stage.read("pod", name)["spec"].get("nodeName") == first,  # type: ignore[union-attr,misc]
            f"a pod that requires {label} was scheduled to {first}",
        )
    stage.kubectl("delete", "pod", "wants-avx2", "wants-model", "--wait=true")
    stage.kubectl("annotate", "node", second, "drydock.dev/mask-cpu-features-")
    stage.until(f"the labels of {second} to be restored", lambda: _cpu_labels(stage, second) == before, "labels were restored")


def _configuration(stage: Stage, node: str) -> None:
    before = _cpu_labels(stage, node)
    models = [key.split("/")[1] for key in before if key.startswith("cpu-model.")]
    model = next((name for name in ("Penryn", "Nehalem", "Westmere") if name in models), models[0])
    stage.scene(
        "Labels follow the configuration",
        f"""{model} is declared obsolete and Nehalem the minimum. The features of Nehalem then need no labels of their own,
        because a single label shows that a node has all of them.""",
    )
    stage.kubectl("apply", "-f", "-", input=CONFIGURATION.format(model=model, minimum="Nehalem"))
    stage.until(
        "the labels to change",
        lambda: f"cpu-model.node.kubevirt.io/{model}" not in stage.labels(node),
        "labels followed a change of configuration",
    )
    stage.cluster.kubectl("wait", "hyperconverged", "--all", "-n", "drydock", "--for=condition=InForce", "--timeout=60s")
    stage.kubectl("get", "hyperconverged", "-n", "drydock", "-o", "wide")
    stage.kubectl("apply", "-f", "-", input=CONFIGURATION.format(model=model, minimum="Pendryn"))
    stage.cluster.kubectl(
        "wait", "hyperconverged", "--all", "-n", "drydock", "--timeout=60s",
        "--for=jsonpath={.status.conditions[?(@.type==\"InForce\")].reason}=Refused",
    )
    stage.kubectl("get", "hyperconverged", "-n", "drydock", "-o", "wide")
    stage.note("a misspelt CPU model was refused by name, and the previous configuration remained in force")
    stage.kubectl("delete", "hyperconverged", "--all", "-n", "drydock")
    stage.until("the labels to be restored", lambda: _cpu_labels(stage, node) == before, "labels were restored")


def _opt_out(stage: Stage, first: str, second: str) -> None:
    stage.scene("A node opts out", f"{first} is excluded from labelling: its labels are not changed, even if they are forged.")
    forged = "cpu-model.node.kubevirt.io/Made-By-Hand"
    stage.kubectl("annotate", "node", first, "node-labeller.kubevirt.io/skip-node=true")
    stage.kubectl("wait", "hypervisor", first, "--for=jsonpath={.status.conditions[?(@.type==\"Labelled\")].reason}=SkippedByAnnotation", "--timeout=60s")
    for node in (first, second):
        stage.kubectl("label", "node", node, f"{forged}=true")
    stage.until(f"{second} to lose the label", lambda: forged not in stage.labels(second), "a forged label was removed")
    if forged in stage.labels(first):
        stage.note(f"{first} opted out, and kept the forged label")
    stage.kubectl("annotate", "node", first, "node-labeller.kubevirt.io/skip-node-")
    stage.until(f"{first} to lose the label", lambda: forged not in stage.labels(first), "labelling resumed at once")


def _tampering(stage: Stage, node: str) -> None:
    stage.scene("Labels are restored", "A correct label is removed, by mistake or to divert virtual machines to other nodes.")
    key = next(key for key in _cpu_labels(stage, node) if key.startswith("cpu-model."))
    stage.kubectl("label", "node", node, f"{key}-")
    stage.until("the label to be restored", lambda: key in stage.labels(node), "a removed label was restored")
