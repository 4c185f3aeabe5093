"""Lists the conditions and other fields that have reasons, and the places in the source that define these reasons."""

from __future__ import annotations

from dataclasses import dataclass

API, CORE, CONTROLLER = "controller/api/src", "controller/core/src", "controller/src"
AGENT, HOST, LAUNCHER = "agent/src", "agent/host/src", "agent/launcher/src"


@dataclass(frozen=True)
class Variants:
    """Reasons that a function of an enum returns. Without a function, the names of the variants are the reasons."""

    file: str
    enum: str
    function: str = "reason"
    # The file that declares the enum, if it is not `file`.
    declared: str = ""
    # The type whose method returns the reasons, if it is not the enum; "-" for a free function.
    owner: str = ""
    # Omitted variants: they are never written, or pass on the reason of another enum.
    but: tuple[str, ...] = ()


@dataclass(frozen=True)
class Constants:
    """Reasons that are constants of a file."""

    file: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """Reasons that are string literals in a file, with their meanings."""

    file: str
    meanings: dict[str, str]


Source = Variants | Constants | Written


@dataclass(frozen=True)
class Condition:
    """A condition type or another field that has a reason, with the sources of its reasons."""

    # `file::NAME` of a constant, or the name of a field.
    name: str
    sources: tuple[Source, ...]
    # Text that follows the doc comment of the constant.
    note: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of object and its conditions."""

    name: str
    conditions: tuple[Condition, ...]
    note: str = ""


_MISFITS = Variants(f"{CORE}/placement/misfit.rs", "Misfit")
_DOMAIN = Variants(f"{CORE}/domain/problem.rs", "DomainProblem")
_FOLDER = Variants(f"{HOST}/pod_folder.rs", "FolderError")
_POD_REASONS = Variants(f"{CORE}/maintenance/pods.rs", "StayReason", "as_str")
_NODE, _HYPERVISOR, _HYPERCONVERGED = (f"{API}/reasons.rs::{module}::" for module in ("node", "hypervisor", "hyperconverged"))
_VM = f"{API}/kubevirt/names.rs::conditions::"
_NOT_RUNNING = "The guest does not run: it has not started, is paused, or has ended."

KINDS = (
    Kind(
        "Node",
        (
            Condition(
                f"{_NODE}DRAIN_IN_PROGRESS",
                (
                    Written(
                        f"{CONTROLLER}/drain_task/drain_status.rs",
                        {
                            "VirtualMachinesLeft": "Virtual machines have to leave the node; `status.drain` of the Hypervisor lists them.",
                            "NothingToMove": "No virtual machine has to leave the node.",
                        },
                    ),
                ),
            ),
            Condition(f"{_NODE}DRAINED", (Variants(f"{CORE}/drain/node_conditions.rs", "Drained"),)),
            Condition(
                f"{_NODE}MAINTENANCE_PLANNED",
                (Written(f"{CORE}/maintenance/node_changes.rs", {"AdminRequested": "A NodeMaintenance waits for the Lease of the node."}),),
            ),
            Condition(
                f"{_NODE}MAINTENANCE_IN_PROGRESS",
                (
                    Written(
                        f"{CORE}/maintenance/node_changes.rs",
                        {
                            "AdminRequested": "A NodeMaintenance requests the maintenance.",
                            "MaintenanceEnded": "The NodeMaintenance has ended, and the node is restored.",
                        },
                    ),
                ),
            ),
        ),
        "The types are those of KEP-5683.",
    ),
    Kind(
        "Hypervisor",
        (
            Condition(
                f"{_HYPERVISOR}INSPECTED",
                (
                    Written(
                        f"{CORE}/node.rs",
                        {"Inspected": "The last inspection succeeded.", "NotInspected": "The first inspection is in progress."},
                    ),
                    Variants(f"{HOST}/problem.rs", "ProblemReason", "as_str"),
                    Variants(f"{AGENT}/inspector.rs", "InspectorError"),
                ),
                "While the condition is false, the facts of the last successful inspection stay in the status and are marked stale.",
            ),
            Condition(
                f"{_HYPERVISOR}LABELLED",
                (
                    Written(
                        f"{CORE}/node.rs",
                        {
                            "LabelsCurrent": "All CPU labels are set.",
                            "SomeKeysInvalid": "Some labels are left out, since Kubernetes does not allow "
                            "their keys; the message contains them.",
                            "SkippedByAnnotation": "The annotation `node-labeller.kubevirt.io/skip-node` freezes the labels.",
                        },
                    ),
                    Variants(f"{CORE}/labels.rs", "Withheld"),
                ),
            ),
            Condition(
                f"{_HYPERVISOR}KVM_AVAILABLE",
                (
                    Variants(f"{CORE}/readiness.rs", "KvmState", "kvm_reason", f"{API}/facts.rs", "-", ("Unknown",)),
                    Written(f"{CORE}/node.rs", {"NotInspected": "The first inspection is in progress."}),
                ),
            ),
            Condition(f"{_HYPERVISOR}GUEST_NETWORK", (Variants(f"{CORE}/guest_network.rs", "GuestNetwork"),)),
            Condition(
                f"{_HYPERVISOR}READY",
                (
                    Variants(f"{CORE}/readiness.rs", "NodeReadiness"),
                    Written(f"{CORE}/node.rs", {"AgentStopped": "The agent of the node has ended."}),
                ),
            ),
            Condition(
                f"{_HYPERVISOR}CONFIGURATION_ACCEPTED",
                (
                    Written(
                        f"{CORE}/node.rs",
                        {
                            "Accepted": "The node follows the configuration.",
                            "Refused": "A configuration object or an annotation of the Node has an invalid value; the message contains "
                            "the value. The last valid value stays in force.",
                        },
                    ),
                ),
            ),
            Condition("status.drain.remaining[].state", (Variants(f"{API}/hypervisor.rs", "RemainingState", "", but=("Unknown",)),)),
            Condition(
                "status.drain.remaining[].reason",
                (Variants(f"{CORE}/drain/state.rs", "EvacuationCause", but=("Queued",)),),
                "Why a virtual machine is still on a node that is being drained. The metric "
                "`drydock_drain_guests_blocked` has the same reasons. "
                "A virtual machine whose migration waits has the reason of the migration's condition `Waiting` here.",
            ),
        ),
    ),
    Kind(
        "VirtualMachineInstance",
        (
            Condition(
                f"{_VM}READY",
                (
                    Written(
                        f"{CORE}/guest.rs",
                        {
                            "GuestNotRunning": _NOT_RUNNING,
                            "ContainersNotReady": "The readiness probe of the guest has not succeeded.",
                        },
                    ),
                    Written(f"{CORE}/instance/wanted_status.rs", {"PodNotExists": "The launcher pod does not exist yet."}),
                    Constants(f"{CORE}/vm_conditions.rs", ("POD_TERMINATING",)),
                    Constants(f"{CORE}/instance/hindrances.rs", ("NODE_NOT_READY",)),
                    Variants(f"{AGENT}/guests/guest_task.rs", "GuestTaskError", but=("Folder", "Call", "Domain")),
                    Variants(f"{HOST}/domain/call_error.rs", "CallError", but=("Folder",)),
                    _FOLDER,
                    _DOMAIN,
                ),
                "The condition has no reason while it is true. The last reasons in this table are those of a "
                "guest that the agent cannot start.",
            ),
            Condition(
                f"{_VM}PAUSED",
                (
                    Written(
                        f"{CORE}/guest.rs",
                        {
                            "PausedByUser": "The guest was paused by a request, or started paused.",
                            "PausedIOError": "QEMU paused the guest because a disk had an I/O error.",
                            "Paused": "libvirt reports another cause, which the message contains.",
                        },
                    ),
                ),
            ),
            Condition(f"{_VM}LIVE_MIGRATABLE", (Variants(f"{CORE}/migratable.rs", "Obstacle"),)),
            Condition(
                f"{_VM}STORAGE_LIVE_MIGRATABLE",
                (Written(f"{CORE}/guest.rs", {"NotMigratable": "The guest cannot be live migrated for a reason other than its disks."}),),
            ),
            Condition(f"{_VM}AGENT_CONNECTED", (), "The condition has no reason."),
            Condition(f"{_VM}AGENT_VERSION_NOT_SUPPORTED", (Constants(f"{CORE}/guest.rs", ("UNSUPPORTED",)),)),
            Condition(f"{_VM}ACCESS_CREDENTIALS_SYNCHRONIZED", (Constants(f"{CORE}/guest.rs", ("NOT_SYNCHRONIZED",)),)),
            Condition(
                f"{_VM}POD_SCHEDULED",
                (
                    Written(f"{CORE}/launcher_pod/pending.rs", {"Unschedulable": "The scheduler has found no node. Kubernetes' name."}),
                    Constants(f"{CORE}/launcher_pod/pending.rs", ("NOT_SCHEDULED",)),
                ),
                "The condition exists only while it is false. Reasons of the pod's own condition are passed on.",
            ),
            Condition(
                f"{_VM}SYNCHRONIZED",
                (
                    Written(f"{CORE}/instance/wanted_status.rs", {"FailedCreate": "The API server rejected the launcher pod."}),
                    Constants(f"{CORE}/launcher_pod/pending.rs", ("NOT_ADMITTED", "NOT_READY_TO_START")),
                    Written(f"{CORE}/launcher_pod/pending.rs", {"Error": "A container of the pod ended with an error."}),
                    Written(
                        f"{CORE}/instance/inputs.rs",
                        {"FailedMount": "A volume cannot be mounted, for example because a Secret is missing."},
                    ),
                ),
                "The condition exists only while it is false. Reasons of the pod's containers and of its "
                "kubelet's events are passed on, such as `ImagePullBackOff`.",
            ),
            Condition(
                f"{_VM}MIGRATION_TARGET_AVAILABLE",
                (
                    Written(
                        f"{CORE}/placement/targets.rs",
                        {
                            "TargetsFound": "At least one other node could run the guest.",
                            "FeatureListedNowhere": "At least one other node could run the guest, if its libvirt agrees: "
                            "the guest has CPU features that no node lists.",
                            "NoOtherNode": "There is no other node.",
                            "GuestCPUUnknown": "The CPU of the guest is not known yet.",
                        },
                    ),
                    _MISFITS,
                ),
                "If several causes rule out nodes, the reason is one of them, and the message contains all. The same reasons are used "
                "wherever Drydock explains why a node cannot run a virtual machine.",
            ),
            Condition(
                f"{_VM}FENCING_REQUIRED",
                (
                    Written(
                        f"{CORE}/instance/hindrances.rs",
                        {
                            "NodeDeletedAgentAlive": "The Node was deleted, but its agent renews its Lease, "
                            "so the guest may still run there.",
                            "PodLostOnUnresponsiveNode": "The pod was deleted while its node did not respond. Power the node off, then "
                            "delete the Node or taint it with `node.kubernetes.io/out-of-service`.",
                        },
                    ),
                ),
            ),
            Condition(
                f"{_VM}EVICTION_REQUESTED",
                (
                    Written(f"{CORE}/instance/wanted_status.rs", {"Moved": "The guest has left the node that it had to leave."}),
                    Written(f"{API}/kubevirt/names.rs", {"EvictionRequested": "The instance is marked to leave its node."}),
                ),
            ),
            Condition(
                f"{_VM}EVICTION_BUDGET_CONFLICT",
                (
                    Written(
                        f"{CORE}/eviction/pdbs.rs",
                        {
                            "PodSelectedByAnotherPDB": "Another PodDisruptionBudget selects the pod. With two of them, Kubernetes would "
                            "return an error for each eviction.",
                            "BudgetRefused": "The API server rejected the PodDisruptionBudget.",
                        },
                    ),
                ),
            ),
            Condition(
                "status.reason",
                (
                    Variants(
                        f"{CORE}/instance/ending.rs",
                        "GuestOutcome",
                        "reason",
                        f"{API}/launcher.rs",
                        "EndedGuest",
                        ("Migrated", "Unknown"),
                    ),
                    Written(f"{CORE}/instance/ending.rs", {"LauncherLost": "The launcher ended without a report."}),
                    Constants(f"{API}/kubevirt/names.rs", ("reasons::EVICTED", "reasons::EVICTED_BY_KUBELET")),
                    Constants(f"{CORE}/instance/wanted_status.rs", ("NODE_GONE",)),
                ),
                "Why the guest ended: the reason of the phase `Succeeded` or `Failed`. Before the guest runs, `status.reason` is the "
                "reason of the condition that prevents its start.",
            ),
        ),
    ),
    Kind(
        "VirtualMachine",
        (
            Condition(
                f"{_VM}READY",
                (
                    Constants(f"{CORE}/machine.rs", ("NO_INSTANCE",)),
                    Written(f"{CORE}/machine.rs", {"GuestNotRunning": "The instance exists, and its guest does not run yet."}),
                ),
            ),
            Condition(f"{_VM}FAILURE", (Variants(f"{CORE}/machine.rs", "StartRefusal"),)),
            Condition(
                f"{_VM}RESTART_REQUIRED",
                (
                    Written(
                        f"{CORE}/machine.rs",
                        {"TemplateChanged": "The template has changed. The change takes effect when the machine is restarted."},
                    ),
                ),
            ),
            Condition(
                "status.printableStatus",
                (Variants(f"{CORE}/machine/printable.rs", "Printable", "as_str"),),
                "The state as `kubectl get vm` prints it.",
            ),
        ),
        "All conditions of its instance are passed on.",
    ),
    Kind(
        "VirtualMachineInstanceReplicaSet",
        (
            Condition(f"{_VM}REPLICA_FAILURE", (Variants(f"{CORE}/replica_set.rs", "CreationRefusal"),)),
            Condition(
                f"{_VM}REPLICA_PAUSED",
                (Written(f"{CORE}/replica_set.rs", {"Paused": "`spec.paused` is true: no instance is created or deleted."}),),
            ),
        ),
    ),
    Kind(
        "VirtualMachineInstanceMigration",
        (
            Condition(
                f"{CORE}/migration/waiting.rs::WAITING",
                (
                    Variants(f"{CORE}/migration/queue/wait.rs", "WaitReason", "as_str"),
                    Constants(f"{CORE}/migration/waiting.rs", ("REJECTED_BY_QUOTA", "FAILED_CREATE")),
                    Written(
                        f"{CORE}/migration/waiting.rs",
                        {
                            "TargetPodNotScheduled": "No scheduler handles the target pod.",
                            "TargetPodUnschedulable": "The scheduler has found no node for the target pod.",
                        },
                    ),
                    Constants(f"{CORE}/migration/rejected.rs", ("TARGET_POD_REJECTED",)),
                    Constants(f"{CORE}/migration/awaited_agent.rs", ("TARGET_NOT_PREPARED", "TRANSFER_NOT_STARTED")),
                ),
                "Reasons of the target pod's containers and of its kubelet's events are passed on, as in the "
                "condition `Synchronized` of an instance.",
            ),
            Condition(
                f"{CORE}/migration/status.rs::ABORT_REQUESTED",
                (Written(f"{CORE}/migration/status.rs", {"Deleted": "The migration was deleted."}),),
                "Otherwise the reason is that of the failure, as in `status.reason`.",
            ),
            Condition(
                f"{CORE}/migration/status.rs::POST_COPY",
                (Constants(f"{CORE}/migration/status.rs", ("SWITCHED", "POST_COPY_BROKEN")),),
            ),
            Condition(
                "status.reason",
                (
                    Variants(f"{CORE}/migration/cluster.rs", "MigrationFailure"),
                    Constants(f"{CORE}/migration/deadlines.rs", ("TARGET_POD_NOT_READY",)),
                ),
                "Why the migration failed.",
            ),
            Condition(
                "status.source.reason",
                (
                    Constants(
                        f"{CORE}/migration/source/stayed.rs",
                        ("ABORTED", "MIGRATION_ENDED", "NOT_STARTED", "LIBVIRT_GAVE_UP"),
                    ),
                    Constants(f"{AGENT}/tunnel/local.rs", ("LIBVIRT_NOT_UNDERSTOOD",)),
                    Variants(f"{CORE}/migration/convergence.rs", "ActionCause"),
                    Constants(f"{CORE}/migration/unsent.rs", ("NOTHING_SENT",)),
                    Constants(f"{CORE}/migration/status.rs", ("POST_COPY_BROKEN",)),
                ),
                "Why the guest stayed on its source.",
            ),
            Condition(
                "status.target.reason",
                (
                    Constants(
                        f"{CORE}/migration/target/target_refusal.rs",
                        ("OTHER_VIRT_TYPE", "CPU_FEATURE_MISSING", "CPU_NOT_COMPARED"),
                    ),
                    Written(
                        f"{CORE}/processor.rs",
                        {
                            "ProcessorDiffers": "The guest has its host's own CPU, and the target node has another processor.",
                            "NodeNotInspected": "The guest has its host's own CPU, and the processor of the target node is not known.",
                            "GuestCPUUnknown": "The CPU of the guest is not known.",
                        },
                    ),
                    Constants(f"{CORE}/migration/status.rs", ("POST_COPY_BROKEN",)),
                ),
                "Why the target node cannot run the guest. A guest whose CPU cannot be described for libvirt has a reason of the "
                "instance's condition `Ready` here, such as `ControlCharacters`.",
            ),
        ),
    ),
    Kind(
        "NodeMaintenance",
        (
            Condition(
                f"{CORE}/maintenance/report.rs::DRAINED",
                (
                    Written(
                        f"{CORE}/maintenance/report.rs",
                        {
                            "Drained": "Every pod that had to leave has left.",
                            "Starting": "The earlier state of the node is recorded; the node is not changed yet.",
                            "WaitingForLease": "The Lease of the node is held by another client, or cannot be "
                            "written; the node is not changed yet.",
                            "PodsUnknown": "The pods of the node are not known yet.",
                        },
                    ),
                    _POD_REASONS,
                    Variants(f"{CORE}/maintenance/report.rs", "MaintenanceFailure", "as_str"),
                    Constants(f"{CORE}/maintenance/report.rs", ("ENDED",)),
                ),
                "If pods have several reasons, the condition has the most severe.",
            ),
            Condition(
                f"{CORE}/maintenance/report.rs::CORDONED",
                (Written(f"{CORE}/maintenance/report.rs", {"Cordoned": "The node is unschedulable and has the taints of a maintenance."}),),
            ),
            Condition(
                f"{CORE}/maintenance/report.rs::LEASE_HELD",
                (
                    Written(f"{CORE}/maintenance/report.rs", {"Held": "The Lease is held and renewed."}),
                    Constants(f"{CORE}/maintenance/report.rs", ("HELD_BY_OTHER", "RENEWAL_FAILED", "RENEWAL_DELAYED", "ACQUISITION_FAILED")),
                ),
            ),
            Condition("status.pods[].reason", (_POD_REASONS,), "Why a pod has not left the node."),
        ),
        "`status.phase` is `Running`, `Succeeded` or `Failed`.",
    ),
    Kind(
        "HyperConverged",
        (
            Condition(
                f"{_HYPERCONVERGED}IN_FORCE",
                (
                    Written(
                        f"{CORE}/in_force.rs",
                        {
                            "InForce": "All nodes follow the object.",
                            "NotOnAllNodes": "Some nodes do not follow the object yet; the message names them.",
                            "Refused": "A value of the object is invalid; the message names it. The last valid configuration stays in force.",
                            "NoNodes": "No node has an agent yet.",
                        },
                    ),
                    Variants(f"{CORE}/configuration/selection.rs", "NotInForce"),
                ),
            ),
            Condition(
                f"{_HYPERCONVERGED}DEFAULT_CPU_MODEL_OFFERED",
                (
                    Written(
                        f"{CORE}/configuration/default_model.rs",
                        {
                            "NodesOfferModel": "At least one node offers the CPU model.",
                            "NoNodeOffersModel": "libvirt on some nodes has the CPU model, but no node offers it.",
                            "CPUModelUnknown": "libvirt on no node has the CPU model.",
                            "CPUModelObsolete": "The CPU model is obsolete.",
                            "NoNodes": "No node has reported its CPU models yet.",
                        },
                    ),
                ),
                "The condition exists if `spec.defaultCPUModel` names a model.",
            ),
        ),
    ),
    Kind(
        "Refused requests",
        (
            Condition(
                "Evictions",
                (Variants(f"{CORE}/eviction.rs", "EvictionRefusal"),),
                "The webhook refuses the eviction of a launcher pod with status 429 and KubeVirt's message; "
                "the controller logs the reason. "
                "`InProgress` and `Triggered` end when the virtual machine has moved.",
            ),
            Condition(
                "Objects",
                (Variants(f"{CORE}/admission/refusal.rs", "AdmissionReason", "as_str"),),
                "The response of the API server has one cause for each refused field (`details.causes[].reason`).",
            ),
            Condition(
                "Disks",
                (Variants(f"{LAUNCHER}/disks/disk_refusal.rs", "DiskRefusal"),),
                "A launcher that cannot prepare a disk ends with one of these reasons in its termination "
                "message, and the guest does not start.",
            ),
        ),
    ),
)

# Functions whose reasons are in no condition, and the place where these reasons appear instead.
INTERNAL = {
    f"{CORE}/certificates.rs": {"RenewalCause::reason": "label of the metric drydock_webhook_certificates_made_total, and logs"},
    f"{CONTROLLER}/certificates/read.rs": {"Unusable::reason": "logs of the controller"},
    f"{CONTROLLER}/webhook_server/reviews.rs": {"ReviewFailure::reason": "label of the metric drydock_webhook_requests_total, and HTTP errors"},
    f"{CORE}/migration/hand_over.rs": {"HandOverRefusal::reason": "responses of a tunnel to its agent, and logs"},
    f"{AGENT}/tunnel/tunnel_refusal.rs": {
        "CallRefusal::reason": "responses of a tunnel to its agent, and logs",
        "StreamRefusal::reason": "label of a metric of tunnels, and logs",
    },
    f"{HOST}/domain/state.rs": {"DomainState::reason": "libvirt's own names, in logs"},
    f"{HOST}/problem.rs": {"HostProblem::reason": "the same as those of ProblemReason"},
}

# Strings in the files of conditions that look like reasons but are not.
NO_REASONS = frozenset(
    """
    True False Warning Running Succeeded Failed Aborting NoSchedule NoExecute Unix KiB In NotIn Exists DoesNotExist
    Node Hypervisor ConfigMap Secret Pod VirtualMachine VirtualMachineInstance VirtualMachineInstanceReplicaSet
    VirtualMachineInstanceMigration DaemonSet ReadWriteMany Drain Maintain
    """.split()
)
# Reasons that Kubernetes' components set and Drydock reads.
READ = frozenset(
    """
    ContainerCreating PodInitializing FailedScheduling PodReadyToStartContainers DeletionByPodGC DisruptionTarget
    ErrImageNeverPull FailedDataVolumeImport FailedPvcNotFound ImageInspectError InvalidImageName RegistryUnavailable
    """.split()
)
# Reasons that no object has: a waiting migration has a reason of its own; the outcome of a launcher whose guest has migrated
# does not end the instance; the migration reports the two timeouts as DeadlineExceeded, with their messages.
UNSEEN = frozenset({"Queued", "GuestMigrated", "PreparationTimedOut", "StartTimedOut"})
