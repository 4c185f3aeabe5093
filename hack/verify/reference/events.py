"""Generates the page of the events that Drydock records, and compares its table with the source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .conditions import AGENT, CONTROLLER, CORE
from .source import WRITE, arms, block, constants, files, named, read, table

NODE, VM, VMI, REPLICA_SET, MIGRATION, MAINTENANCE = (
    "Node",
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceReplicaSet",
    "VirtualMachineInstanceMigration",
    "NodeMaintenance",
)

# The kind of object for which a file records events.
OBJECTS = {
    f"{CORE}/node.rs": NODE,
    f"{CORE}/machine.rs": VM,
    f"{CORE}/replica_set.rs": REPLICA_SET,
    f"{CORE}/maintenance.rs": MAINTENANCE,
    f"{CONTROLLER}/drain_task.rs": VMI,
    f"{CONTROLLER}/drain_task/drain_status.rs": NODE,
    f"{CONTROLLER}/instance_task.rs": VMI,
    f"{CONTROLLER}/liveness_task.rs": NODE,
    f"{CONTROLLER}/machine_task.rs": VM,
    f"{CONTROLLER}/maintenance_task.rs": MAINTENANCE,
    f"{CONTROLLER}/migration_task.rs": MIGRATION,
    f"{CONTROLLER}/migration_task/migration_status.rs": MIGRATION,
    f"{CONTROLLER}/replica_set_task.rs": REPLICA_SET,
    f"{AGENT}/guests/commands.rs": VMI,
    f"{AGENT}/guests/events.rs": VMI,
    f"{AGENT}/guests/guest_task.rs": VMI,
    f"{AGENT}/guests/guest_task/credentials.rs": VMI,
    f"{AGENT}/guests/guest_task/file_systems.rs": VMI,
    f"{AGENT}/guests/guest_task/node_deleted.rs": VMI,
    f"{AGENT}/guests/status_report.rs": VMI,
    f"{AGENT}/migrations/source_task/monitor.rs": VMI,
    f"{AGENT}/migrations/source_task/report.rs": VMI,
    f"{AGENT}/migrations/source_task/start_migration.rs": VMI,
    f"{AGENT}/migrations/status_patch.rs": VMI,
    f"{AGENT}/migrations/target_task.rs": VMI,
    f"{AGENT}/node_task.rs": NODE,
}
# Reasons of events that a file records for an object of another kind.
ELSEWHERE = {(f"{CORE}/maintenance.rs", "UncordonNode"): NODE}

# The meaning of each event, by kind, type and reason.
MEANINGS = {
    (NODE, "Normal", "CPULabelsChanged"): "CPU labels of the node have changed; the message contains the numbers.",
    (NODE, "Normal", "NodeDrained"): "Nothing that a drain would move is left on the node: the node is safe to power off.",
    (NODE, "Normal", "UncordonNode"): "The node is schedulable again after its maintenance.",
    (NODE, "Warning", "ConfigurationRefused"): "A configuration object or an annotation of the Node has an invalid value.",
    (NODE, "Warning", "GuestNetworkUnavailable"): "Guests on the node cannot have a network; the message contains the cause.",
    (NODE, "Warning", "HostModelIsObsolete"): "The host's CPU model is obsolete: guests with `host-model` are not scheduled to the node.",
    (NODE, "Warning", "InspectionFailed"): "The node could not be inspected; the message contains the cause.",
    (NODE, "Warning", "NodeUnresponsive"): "The agent has not renewed its Lease: no virtual machines are "
    "scheduled to the node until it does.",
    (VM, "Normal", "RestartRequired"): "The template has changed. The change takes effect when the machine is restarted.",
    (VM, "Normal", "SuccessfulCreate"): "The instance was created.",
    (VM, "Normal", "SuccessfulDelete"): "The instance was deleted; the message contains the cause.",
    (VM, "Warning", "FailedCreate"): "The API server rejected the instance.",
    (VM, "Warning", "InstanceNotOwned"): "An instance of the same name exists and belongs to another owner.",
    (VM, "Warning", "StartFailed"): "The instance ended before its guest ran, or the kubelet evicted it; the "
    "message contains the time of the next start.",
    (VMI, "Normal", "AccessCredentialsSyncSuccess"): "The guest agent has set the access credentials.",
    (VMI, "Normal", "AutoConverge"): "The guest dirties memory faster than it is sent, so QEMU throttles its CPUs.",
    (VMI, "Normal", "CompletionTimeExceeded"): "The migration exceeds its completion time; the message contains the resulting action.",
    (VMI, "Normal", "Created"): "The guest was created in its pod.",
    (VMI, "Normal", "DoesNotConverge"): "The guest dirties memory faster than it can be sent; the message contains the resulting action.",
    (VMI, "Normal", "DowntimeTooShort"): "The migration would take too long, so its maximum downtime was increased.",
    (VMI, "Normal", "Frozen"): "The file systems of the guest were frozen by a request.",
    (VMI, "Normal", "Migrated"): "The guest has migrated to another node.",
    (VMI, "Normal", "Migrating"): "The guest begins to migrate.",
    (VMI, "Normal", "NoProgress"): "The remaining bytes of the migration do not decrease; the message contains the resulting action.",
    (VMI, "Normal", "Paused"): "The guest was paused by a request.",
    (VMI, "Normal", "PreparingTarget"): "The target of a migration is prepared.",
    (VMI, "Normal", "Rebooted"): "The guest has restarted itself.",
    (VMI, "Normal", "Reset"): "The guest was reset by a request.",
    (VMI, "Normal", "ShuttingDown"): "The guest is shutting down.",
    (VMI, "Normal", "SoftRebooted"): "A restart of the guest was requested.",
    (VMI, "Normal", "Started"): "The guest was started.",
    (VMI, "Normal", "Stopped"): "The guest has ended; the message contains libvirt's detail.",
    (VMI, "Normal", "SuccessfulCreate"): "The launcher pod was created, or the migration that moves the guest off its node.",
    (VMI, "Normal", "SuccessfulDelete"): "The launcher pod was deleted.",
    (VMI, "Normal", "Thawed"): "The file systems of the guest were thawed, by a request or because the freeze has expired.",
    (VMI, "Normal", "Unpaused"): "The guest was resumed by a request.",
    (VMI, "Warning", "AccessCredentialsSyncFailed"): "The access credentials could not be set in the guest.",
    (VMI, "Warning", "FailedCreate"): "The API server rejected the launcher pod, or the migration that would move the guest off its node.",
    (VMI, "Warning", "IOerror"): "A disk of the guest had an I/O error.",
    (VMI, "Warning", "Migrated"): "The migration failed, and the guest stays on its node; the message contains the cause.",
    (VMI, "Warning", "NodeDeleted"): "The Node was deleted: the guest is shut down, and may start on another node afterwards.",
    (VMI, "Warning", "PostCopyBroken"): "The connection of a migration broke after the switch to post-copy: the guest cannot continue.",
    (VMI, "Warning", "SyncFailed"): "The guest cannot be started; the message contains the cause, and the condition `Ready` has the reason.",
    (VMI, "Warning", "TargetRefused"): "The target node of a migration cannot run the guest.",
    (VMI, "Warning", "ThawFailed"): "The file systems of the guest could not be thawed after the freeze has expired.",
    (REPLICA_SET, "Normal", "SuccessfulCreate"): "An instance was created.",
    (REPLICA_SET, "Normal", "SuccessfulDelete"): "An instance was deleted.",
    (REPLICA_SET, "Warning", "FailedCreate"): "The API server rejected an instance.",
    (REPLICA_SET, "Warning", "FailedDelete"): "The API server refused to delete an instance.",
    (REPLICA_SET, "Warning", "InvalidSelector"): "The selector is invalid: no instance is created or deleted.",
    (REPLICA_SET, "Warning", "SelectorDoesNotMatchTemplate"): "The selector would not match created instances, so none is created.",
    (MIGRATION, "Normal", "SuccessfulCreate"): "The target pod was created.",
    (MIGRATION, "Normal", "SuccessfulDelete"): "The target pod was deleted.",
    (MIGRATION, "Normal", "SuccessfulMigration"): "The guest has migrated.",
    (MIGRATION, "Warning", "FailedCreate"): "The API server rejected the target pod.",
    (MIGRATION, "Warning", "FailedMigration"): "The migration failed; the message contains the cause.",
    (MAINTENANCE, "Normal", "BeginMaintenance"): "The maintenance begins.",
    (MAINTENANCE, "Normal", "RemovedMaintenance"): "The maintenance has ended and the node is restored.",
    (MAINTENANCE, "Normal", "SucceedMaintenance"): "The node is empty.",
    (MAINTENANCE, "Warning", "CordonedAgain"): "The node was uncordoned during the maintenance. The node was cordoned again.",
    (MAINTENANCE, "Warning", "FailedMaintenance"): "The maintenance failed; the status of the NodeMaintenance contains the cause.",
}

_REASON = r'(?:"(?P<text>\w+)"|(?P<name>[\w.:]+(?:\(\))?))'
_RECORDED = (
    re.compile(r"Severity::(?P<type>Normal|Warning),\s*(?:reason: )?" + _REASON),
    re.compile(r"\bwarning: (?P<type>true|false),\s*reason: " + _REASON),
    re.compile(r"\bon_maintenance\(\s*(?P<type>true|false),\s*" + _REASON),
    re.compile(r"\b(?P<type>warning)\(\s*" + _REASON + ","),
)
_TYPES = {"true": "Warning", "warning": "Warning", "false": "Normal"}
_RECORDS = re.compile(r"(?<!fn )\b(?:record_event|publish_event|events\.(?:publish|record))\(")
_CONSTANT = re.compile(r"(?:\w+::)*[A-Z][A-Z0-9_]+")


def recorded(source: str) -> Iterator[tuple[str, str]]:
    """Yield the events that a file records: the type, and either the quoted reason or the expression that evaluates to it."""
    for pattern in _RECORDED:
        for found in pattern.finditer(source):
            reason = f'"{found["text"]}"' if found["text"] else found["name"].removesuffix(".into()")
            yield _TYPES.get(found["type"], found["type"]), reason


def _commands() -> set[str]:
    return set(re.findall(r'\("(\w+)", "', block(read(f"{AGENT}/guests/commands.rs"), r"\bfn event\b")))


def _actions() -> set[str]:
    text = read(f"{CORE}/migration/convergence.rs")
    return set(re.findall(r'\breason: "(\w+)"', text)) | set(arms(text, "ActionCause", "reason"))


def expressions() -> dict[tuple[str, str], set[str]]:
    """Return the reasons of events that are neither strings nor constants, by file and expression."""
    return {
        (f"{AGENT}/guests/commands.rs", "reason"): _commands(),
        (f"{AGENT}/migrations/source_task/monitor.rs", "action.reason"): _actions(),
        (f"{CORE}/machine.rs", "refusal.reason()"): set(arms(read(f"{CORE}/machine.rs"), "StartRefusal", "reason")),
        (f"{CORE}/replica_set.rs", "refusal.reason()"): set(arms(read(f"{CORE}/replica_set.rs"), "CreationRefusal", "reason")),
    }


def reasons(file: str, expression: str) -> set[str]:
    """Return the reasons to which an expression in a file can evaluate."""
    if expression.startswith('"'):
        return {expression.strip('"')}
    if _CONSTANT.fullmatch(expression):
        name = expression.rpartition("::")[2]
        own = constants(read(file)).get(name)
        return {own.value if own else named(name)}
    return expressions()[file, expression]


def found() -> set[tuple[str, str, str]]:
    """Return kind, type and reason of each event in the source."""
    events = set()
    for file in files():
        for type_, expression in recorded(read(file)):
            for reason in reasons(file, expression):
                events.add((ELSEWHERE.get((file, reason), OBJECTS[file]), type_, reason))
    return events


def unknown_files() -> list[str]:
    """Return files that record events but are not in `OBJECTS`, and files in `OBJECTS` that record no events."""
    recording = {file for file in files() if _RECORDS.search(read(file)) or any(recorded(read(file)))}
    return sorted(recording ^ OBJECTS.keys())


def page() -> str:
    """Return the page of all events."""
    lines = [
        "# Events",
        "",
        f"{WRITE} generates this page from a table that is compared with the source.",
        "`kubectl events --for KIND/NAME` shows the events of an object; those of cluster-scoped objects are in the namespace",
        "`default`. Repetitions within a few minutes are counted in one event. The API server deletes events after an hour, unless",
        "it is configured otherwise.",
    ]
    for kind in dict.fromkeys(kind for kind, _, _ in MEANINGS):
        lines += ["", f"## {kind}"]
        rows = ((type_, f"`{reason}`", meaning) for (of, type_, reason), meaning in MEANINGS.items() if of == kind)
        lines += table(("type", "reason", "meaning"), rows)
    return "\n".join(lines) + "\n"
