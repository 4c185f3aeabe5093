"""Generates the page of labels, annotations, taints, finalizers and other keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .conditions import API, CONTROLLER, CORE
from .source import CRATES, WRITE, constants, files, read, table

NAMES, LABELS, ANNOTATIONS, MAINTENANCE, REMOVAL = (
    f"{API}/{file}.rs" for file in ("kubevirt/names", "labels", "annotations", "maintenance", "removal")
)
DRYDOCK, USERS, KUBERNETES = "Drydock", "users", "Kubernetes"


@dataclass(frozen=True)
class Key:
    """A key: either a constant with a doc comment, or a string whose meaning is given here."""

    file: str
    # The name of the constant, or the key itself if `meaning` is set.
    name: str
    objects: str
    # "–" marks a key that Drydock only reads and that users may not set.
    set_by: str = DRYDOCK
    meaning: str = ""


def _all(file: str, names: str, objects: str, set_by: str = DRYDOCK) -> tuple[Key, ...]:
    return tuple(Key(file, name, objects, set_by) for name in names.split())


_QUORUM = f"{CONTROLLER}/admission/maintenance_reviews/quorum.rs"
_RESERVED = "Reserved by KubeVirt: a policy prevents users from setting this label."
_REFUSED = "An instance or a template with this annotation is refused: Drydock does not implement it."

# Keys by the heading of their section.
KEYS = {
    "Labels of nodes": (
        *_all(
            LABELS,
            "CPU_FEATURE CPU_MODEL CPU_MODEL_MIGRATION CPU_MINIMUM HOST_MODEL HOST_MODEL_REQUIRED_FEATURE OBSOLETE_HOST_MODEL CPU_VENDOR "
            "TSC_FREQUENCY TSC_SCALABLE HYPERV MACHINE_TYPE REALTIME SEV SEV_ES SEV_SNP SECURE_EXECUTION TDX VM_ARCH_AMD64 VM_ARCH_ARM64 "
            "VM_ARCH_S390X SCHEDULABLE CPU_MANAGER GUEST_NETWORK GUEST",
            "Node",
        ),
        Key(MAINTENANCE, "EXCLUDE_FROM_REMEDIATION", "Node"),
        Key(REMOVAL, "UNINSTALL", "Node"),
        *_all(f"{CORE}/placement.rs", "ARCHITECTURE HOSTNAME", "Node", KUBERNETES),
        Key(f"{CORE}/removal/progress.rs", "kubernetes.io/os", "Node", KUBERNETES, "The operating system of the node."),
        Key(
            _QUORUM,
            "node-role.kubernetes.io/control-plane",
            "Node",
            KUBERNETES,
            "The node belongs to the control plane: a NodeMaintenance that would break the quorum of etcd is refused.",
        ),
        Key(_QUORUM, "node-role.kubernetes.io/master", "Node", KUBERNETES, "Older name of the label `node-role.kubernetes.io/control-plane`."),
    ),
    "Labels of other objects": (
        *_all(NAMES, "APP CREATED_BY INSTANCE_ID", "Pod"),
        Key(NAMES, "VM_NAME", "VirtualMachineInstance, Pod"),
        Key(NAMES, "NODE_NAME", "VirtualMachineInstance"),
        Key(NAMES, "LAUNCHER", "Pod, PodDisruptionBudget"),
        Key(f"{CORE}/launcher_pod/target_pod.rs", "MIGRATION_UID", "Pod"),
        Key(f"{CORE}/admission/migration_requests.rs", "INSTANCE_LABEL", "VirtualMachineInstanceMigration"),
        Key(MAINTENANCE, "RESERVATION", "Lease"),
        Key(REMOVAL, "PART_OF", "objects of Drydock's manifests"),
        Key(f"{CORE}/placement/neighbors/terms.rs", "NAMESPACE_NAME", "Namespace", KUBERNETES),
        *(
            Key(f"{CORE}/admission/reserved.rs", key, "VirtualMachineInstance", "–", _RESERVED)
            for key in ("kubevirt.io/migrationTargetNodeName", "kubevirt.io/outdatedLauncherImage")
        ),
    ),
    "Annotations of nodes": _all(ANNOTATIONS, "SKIP_NODE MASK_CPU_FEATURES DRAIN_PREVIEW", "Node", USERS),
    "Annotations of other objects": (
        *_all(NAMES, "EVACUATION_FALLBACK", "VirtualMachineInstance", USERS),
        *_all(f"{CORE}/launcher_pod/security.rs", "APP_ARMOR_PROFILE", "VirtualMachineInstance", USERS),
        *_all(NAMES, "VM_GENERATION TEMPLATE EVICTION_SOURCE", "VirtualMachineInstance"),
        *_all(NAMES, "DOMAIN REQUEST_EVICT_ONLY EVICTION_IN_PROGRESS", "Pod"),
        Key(f"{CORE}/launcher_pod/node_affinity.rs", "REQUIREMENTS_DIGEST", "Pod"),
        Key(f"{CORE}/launcher_pod/target_pod.rs", "MIGRATION_NAME", "Pod"),
        Key(f"{CORE}/launcher_pod.rs", "DEFAULT_CONTAINER", "Pod"),
        Key(f"{CORE}/maintenance/pods.rs", "MIRROR", "Pod", KUBERNETES),
        *_all(f"{CORE}/migration/deadlines.rs", "UNSCHEDULABLE_SECONDS PENDING_SECONDS", "VirtualMachineInstanceMigration", USERS),
        Key(f"{CORE}/migration/purpose.rs", "EVACUATION", "VirtualMachineInstanceMigration"),
        Key(f"{CORE}/migration/purpose.rs", "WORKLOAD_UPDATE", "VirtualMachineInstanceMigration", "–"),
        Key(f"{CORE}/drain/guest_steps.rs", "CIRCUMSTANCES", "VirtualMachineInstanceMigration"),
        Key(f"{CORE}/migration/queue.rs", "ORDER", "VirtualMachineInstanceMigration"),
        Key(NAMES, "INSTANCE", "PodDisruptionBudget"),
        Key(NAMES, "REQUESTED_BY", "Eviction", "descheduler"),
        Key(MAINTENANCE, "RESERVED_FOR", "Lease"),
        Key(REMOVAL, "CONFIRM", "objects of Drydock's manifests", USERS),
        Key(f"{CORE}/launcher_pod.rs", "LAST_APPLIED", "any", "kubectl"),
        *(
            Key(f"{CORE}/admission/annotations.rs", key, "VirtualMachineInstance", "–", _REFUSED)
            for key in (
                "hooks.kubevirt.io/hookSidecars",
                "k8s.v1.cni.cncf.io/networks",
                "kubevirt.io/disablePCIHole64",
                "kubevirt.io/ignitiondata",
                "kubevirt.io/keep-launcher-alive-after-failure",
                "kubevirt.io/libvirt-log-filters",
                "kubevirt.io/placePCIDevicesOnRootComplex",
            )
        ),
    ),
    "Taints": (
        Key(MAINTENANCE, "UNSCHEDULABLE_TAINT", "Node", "Kubernetes, Drydock"),
        Key(f"{CORE}/drain.rs", "MAINTENANCE_TAINT", "Node"),
        Key(
            f"{CORE}/configuration.rs",
            "kubevirt.io/drain",
            "Node",
            "users, Drydock",
            "The node is drained: the default drain taint of the configuration, and the taint of a node in "
            "maintenance requested in the group "
            "`nodemaintenance.kubevirt.io`. Effect NoSchedule.",
        ),
        Key(f"{CONTROLLER}/nodes.rs", "OUT_OF_SERVICE", "Node", USERS),
        Key(f"{CORE}/maintenance/node_changes.rs", "UNREACHABLE", "Node", KUBERNETES),
        Key(f"{CORE}/placement/misfit.rs", "node.kubernetes.io/not-ready", "Node", KUBERNETES, "The node is not ready."),
    ),
    "Finalizers": (
        Key(NAMES, "FINALIZER", "VirtualMachineInstance"),
        Key(NAMES, "VM_FINALIZER", "VirtualMachine"),
        Key(NAMES, "MIGRATION_FINALIZER", "VirtualMachineInstanceMigration"),
        Key(MAINTENANCE, "FINALIZER", "NodeMaintenance"),
    ),
    "Readiness gates and resources": (
        Key(NAMES, "GUEST_RUNNING", "Pod"),
        Key(f"{API}/launcher.rs", "KVM_RESOURCE", "Node, Pod"),
    ),
}

# Strings that look like keys but are not: versions of API groups, values, prefixes of keys above, and names only in messages.
NO_KEYS = frozenset(
    """
    admissionregistration.k8s.io/v1 config.openshift.io/v1 drydock.dev/v1alpha1 hco.kubevirt.io/v1beta1 kubevirt.io/v1
    rbac.authorization.k8s.io/v1 quay.io/kubevirt sigs.k8s.io/descheduler kubevirt.io/ kubevirt.io/vm-arch- cpu-timer.node.kubevirt.io/
    """.split()
)

_KEY = re.compile(r'"((?:[a-z0-9-]+\.)+(?:io|dev|org|com)/[A-Za-z0-9._-]*)"')
_USE = re.compile(r"^(?:Label|Annotation|Taint|Finalizer|Readiness gate|Prefix)(?: of [^:]*)?: (\w)")


def keys(source: str) -> set[str]:
    """Return the strings in a file that look like keys."""
    return set(_KEY.findall(source))


def meaning(comment: str) -> str:
    """Return the meaning in the doc comment of a key's constant."""
    return _USE.sub(lambda found: found[1].upper(), comment)


def row(key: Key) -> tuple[str, str, str, str]:
    """Return the table cells of a key: the key, its objects, what sets it, and its meaning."""
    name, text = key.name, key.meaning
    if not text:
        constant = constants(read(key.file))[key.name]
        name, text = constant.value, meaning(constant.meaning)
    elif f'"{name}"' not in read(key.file):
        raise ValueError(f"{key.file} has no {name}")
    return f"`{name}*`" if name.endswith("/") else f"`{name}`", key.objects, key.set_by, text


def listed() -> set[str]:
    """Return all keys on the page."""
    return {row(key)[0].strip("`*") for section in KEYS.values() for key in section}


def found() -> set[str]:
    """Return all keys in the source."""
    return {key for file in files(CRATES) for key in keys(read(file))} - NO_KEYS


def page() -> str:
    """Return the page of all keys."""
    lines = [
        "# Labels, annotations, taints and finalizers",
        "",
        f"{WRITE} generates this page from the source. `*` stands for the rest of a key. Names of",
        "`kubevirt.io` are KubeVirt's, with its meanings; those of `drydock.dev` are Drydock's own. The labels of nodes have",
        "[a page of their own](labels.md).",
    ]
    for title, section in KEYS.items():
        lines += ["", f"## {title}", *table(("key", "object", "set by", "meaning"), map(row, section))]
    return "\n".join(lines) + "\n"
