"""Compares the agent's device plugin messages with the definition of the kubelet that the test clusters run."""

import json
import re
import subprocess
import unittest

from verify.runner import REPOSITORY

MODULE = REPOSITORY / "hack" / "kubernetes" / "kubernetes"
DEFINITION = "pkg/apis/deviceplugin/v1beta1/api.proto"
DECLARED = REPOSITORY / "agent" / "src" / "device_plugin" / "messages.rs"

# Messages that have another name in the agent, by that name.
MESSAGES = {
    "PluginDevices": "ListAndWatchResponse",
    "PluginDevice": "Device",
    "PreferredRequest": "PreferredAllocationRequest",
    "PreferredForContainer": "ContainerPreferredAllocationRequest",
    "PreferredResponse": "PreferredAllocationResponse",
    "Allocation": "ContainerAllocateResponse",
    "DeviceNode": "DeviceSpec",
}
# Messages with the same fields that the agent declares once.
SHARED = {"DeviceIds": ("ContainerPreferredAllocationResponse", "ContainerAllocateRequest")}
# Fields that have another name in the agent, by that name.
FIELDS = {
    "preferred_allocation_available": "get_preferred_allocation_available",
    "id": "ID",
    "available": "available_deviceIDs",
    "must_include": "must_include_deviceIDs",
    "size": "allocation_size",
    "nodes": "devices",
}
# Names of lists, which differ between messages.
LISTS = {"container_requests", "container_responses", "deviceIDs", "devices_ids"}


def definition() -> str:
    """Return the definition of the kubelet, in the version of Kubernetes that is built for the clusters."""
    found = re.search(r"k8s\.io/kubelet => (k8s\.io/kubelet) (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    downloaded = subprocess.run(
        ["go", "mod", "download", "-json", f"{found[1]}@{found[2]}"], cwd=MODULE, check=True, capture_output=True, text=True
    )
    with open(f"{json.loads(downloaded.stdout)['Dir']}/{DEFINITION}", encoding="utf-8") as file:
        return file.read()


def defined(text: str) -> dict[str, dict[int, tuple[str, str, bool]]]:
    """Return name, type and whether it is a list, for each field by message and number."""
    messages = {}
    for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        fields = re.findall(r"^\s*(repeated )?(map<.*?>|\w+) (\w+) = (\d+);", body, re.MULTILINE)
        messages[name] = {int(number): (field, kind, bool(repeated)) for repeated, kind, field, number in fields}
    return messages


def declared(text: str) -> dict[str, dict[int, tuple[str, str, bool]]]:
    """Return the same for the structures of the agent. The type of an embedded message is the name of its structure."""
    structures = {}
    for name, body in re.findall(r"^pub\(crate\) struct (\w+) \{(.*?)\}", text, re.DOTALL | re.MULTILINE):
        fields = re.findall(r'#\[prost\((\w+)((?:, \w+)*), tag = "(\d+)"\)\]\s*pub\(crate\) (\w+): (.*?),\n', body)
        structures[name] = {
            int(number): (field, re.findall(r"\w+", of)[-1] if kind == "message" else kind, "repeated" in options)
            for kind, options, number, field, of in fields
        }
    return structures


class DevicePlugin(unittest.TestCase):
    def test_messages_are_those_of_the_kubelet(self) -> None:
        kubelet, agent = defined(definition()), declared(DECLARED.read_text())
        self.assertGreater(len(agent), 10)
        for structure, fields in agent.items():
            for message in SHARED.get(structure, (MESSAGES.get(structure, structure),)):
                for number, (field, kind, repeated) in fields.items():
                    name, type_, is_list = kubelet[message][number]
                    with self.subTest(message=message, field=name):
                        self.assertEqual(is_list, repeated)
                        self.assertIn(type_, SHARED.get(kind, (MESSAGES.get(kind, kind),)))
                        if name not in LISTS:
                            self.assertEqual(name, FIELDS.get(field, field))

    def test_another_number_or_type_is_noticed(self) -> None:
        text = DECLARED.read_text()
        for old, new in (('bool, tag = "3"', 'bool, tag = "4"'), ('int32, tag = "3"', 'int64, tag = "3"')):
            self.assertIn(old, text)
            self.assertNotEqual(declared(text.replace(old, new)), declared(text))


if __name__ == "__main__":
    unittest.main()
