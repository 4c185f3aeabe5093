"""Removal of Drydock: what counts as left behind, and which steps run."""

import argparse
import unittest
from typing import Any
from unittest import mock

from embedded.errors import Failure
from embedded.progress import Progress
from verify import removal
from verify.removal import FOLDERS, leaving, left_on, names
from verify.runner import REPOSITORY


def node(**parts: Any) -> dict[str, Any]:
    """Return a node with these fields set."""
    made: dict[str, Any] = {
        "metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux"}, "annotations": {"volumes.kubernetes.io/x": "y"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "2"}},
    }
    for path, value in parts.items():
        outer, _, inner = path.partition("_")
        made[outer][inner] = value
    return made


class Left(unittest.TestCase):
    def test_node_without_drydock_has_nothing_left(self) -> None:
        self.assertEqual(left_on(node()), [])
        self.assertEqual(left_on({"metadata": {"name": "n"}}), [])

    def test_each_part_of_drydock_is_found(self) -> None:
        for made, expected in (
            (node(metadata_labels={"kubevirt.io/schedulable": "true"}), ["label kubevirt.io/schedulable"]),
            (node(metadata_labels={"cpu-model.node.kubevirt.io/a": "true"}), ["label cpu-model.node.kubevirt.io/a"]),
            (node(metadata_labels={"notkubevirt.io/a": "true"}), []),
            (node(metadata_annotations={"drydock.dev/drain-preview": "true"}), ["annotation drydock.dev/drain-preview"]),
            (node(spec_taints=[{"key": "medik8s.io/drain"}]), ["taint medik8s.io/drain"]),
            (node(status_conditions=[{"type": "Drained"}, {"type": "Ready"}]), ["condition Drained"]),
            (node(status_capacity={"devices.kubevirt.io/kvm": "1k"}), []),
            (node(status_allocatable={"devices.kubevirt.io/kvm": "1k"}), ["allocatable devices.kubevirt.io/kvm=1k"]),
            (node(status_allocatable={"devices.kubevirt.io/kvm": "0"}), []),
        ):
            self.assertEqual(left_on(made), expected)

    def test_objects_that_are_being_deleted_are_named(self) -> None:
        stays = {"kind": "Namespace", "metadata": {"name": "a"}}
        goes = {"kind": "Role", "metadata": {"name": "b", "namespace": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        self.assertEqual(leaving([stays, goes]), ["Role b"])
        self.assertEqual(names([stays, goes]), {"Namespace//a", "Role/a/b"})


class Steps(unittest.TestCase):
    def ran(self, only: str, failing: str = "") -> tuple[list[str], removal.Outcome]:
        ran: list[str] = []

        def step(name: str) -> removal.Test:
            def test(made: object, progress: Progress) -> None:
                ran.append(name)
                if name == failing:
                    raise Failure("no")

            return test

        steps = tuple((name, step(name)) for name in ("removal_one", "removal_two", "removal_three"))
        with mock.patch.object(removal, "TESTS", steps), mock.patch.object(removal.clusters, "load"):
            outcome = removal.run("any", argparse.Namespace(only=only), Progress())
        return ran, outcome

    def test_steps_before_the_wanted_one_are_run_and_not_counted(self) -> None:
        ran, outcome = self.ran("two")
        self.assertEqual(ran, ["removal_one", "removal_two"])
        self.assertEqual((outcome.passed, outcome.failed), (1, []))

    def test_nothing_is_run_for_another_filter(self) -> None:
        ran, outcome = self.ran("drain")
        self.assertEqual((ran, outcome.passed, outcome.failed), ([], 0, []))

    def test_steps_after_a_failure_are_failures(self) -> None:
        ran, outcome = self.ran("", failing="removal_two")
        self.assertEqual(ran, ["removal_one", "removal_two"])
        self.assertEqual(outcome.passed, 1)
        self.assertEqual(outcome.reasons, {"removal_two": "no"})
        self.assertEqual(len(outcome.failed), 2)


class Page(unittest.TestCase):
    def test_page_has_the_actions_of_the_steps(self) -> None:
        page = (REPOSITORY / removal.PAGE).read_text()
        words = [FOLDERS[0], "drydock.dev/confirm-removal", "kubectl apply -k deploy"]
        self.assertEqual([word for word in words if word not in page], [])
