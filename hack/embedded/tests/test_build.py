"""Tests which modules are built, and in which versions."""

import os
import re
import unittest
from unittest import mock

from embedded import build
from embedded.errors import Failure


class Kubernetes(unittest.TestCase):
    def test_version_of_the_environment_names_the_module(self) -> None:
        for version, module in (("", "kubernetes"), *((one, f"kubernetes-{one}") for one in build.kubernetes_versions())):
            with mock.patch.dict(os.environ, {build.VERSION: version}):
                self.assertEqual(build.kubernetes_module(), module)

    def test_unknown_version_is_refused_with_the_allowed_versions(self) -> None:
        with mock.patch.dict(os.environ, {build.VERSION: "1.2"}), self.assertRaises(Failure) as caught:
            build.kubernetes_module()
        self.assertIn("DRYDOCK_KUBERNETES is '1.2'; allowed: 1.35", str(caught.exception))

    def test_modules_pin_the_version_that_the_name_has(self) -> None:
        for version in build.kubernetes_versions():
            module = build.Module(f"kubernetes-{version}", (), pinned="k8s.io/kubernetes")
            self.assertTrue(module.pin().startswith(f"v{version}."), module.pin())


class Descheduler(unittest.TestCase):
    def test_replacements_are_the_versions_of_kubernetes(self) -> None:
        """Other versions work, too, but then packages that were compiled for Kubernetes are compiled again."""
        of_kubernetes, replaced = required("kubernetes") | replacements("kubernetes"), replacements("descheduler")
        self.assertIn("k8s.io/client-go", replaced)
        self.assertEqual(replaced, {name: of_kubernetes.get(name) for name in replaced})


class Kustomize(unittest.TestCase):
    def test_version_is_that_of_kubectl(self) -> None:
        name = build.KUSTOMIZE.pinned
        self.assertEqual(build.KUSTOMIZE.pin(), required("kubernetes")[name])


def required(module: str) -> dict[str, str]:
    """Return the version of each dependency that a module requires."""
    return dict(re.findall(r"^\t(\S+) (v\S+)", go_mod(module), re.MULTILINE))


def replacements(module: str) -> dict[str, str]:
    """Return the version of each dependency that replaces the required one."""
    return dict(re.findall(r"^\t(\S+) => \S+ (v\S+)", go_mod(module), re.MULTILINE))


def go_mod(module: str) -> str:
    return (build.SOURCES / module / "go.mod").read_text()
