#!/usr/bin/env python3
"""Computes a node's CPU labels from virsh's output, independently of Drydock.

The script shares nothing with Drydock: it uses another language and another XML parser, and implements the
rules again from their documentation. Cluster tests compare its result with the agent's labels.

    node_labels.py DOMCAPABILITIES BASELINE CAPABILITIES [--obsolete A,B] [--minimum FILE] [--mask A,B]
                   [--cpu-map FOLDER] [--realtime]

The first three arguments are files with the output of `virsh domcapabilities`, of
`virsh domcapabilities | virsh hypervisor-cpu-baseline --features /dev/stdin` and of
`virsh capabilities`. Prints the labels as one JSON object.
"""

import argparse
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# The documented list and KubeVirt's later additions. `labels` adds the "-v1" names of all of them.
OBSOLETE = (
    "486 Conroe athlon core2duo coreduo kvm32 kvm64 n270 pentium pentium2 pentium3 pentiumpro phenom qemu32 qemu64 "
    "Opteron_G1 Opteron_G2"
).split()

PENRYN = (
    "apic clflush cmov cx16 cx8 de fpu fxsr lahf_lm lm mca mce mmx msr mtrr nx pae pat pge pni pse pse36 sep sse sse2 "
    "sse4.1 ssse3 syscall tsc"
).split()

KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def cpu_map_features(folder: Path, model: str) -> set[str]:
    """Return the features of a model in libvirt's CPU map, including those of its ancestors.

    Features that QEMU added to the model later are excluded, because libvirt keeps them separate.
    """
    for file in sorted(folder.glob("*.xml")):
        for element in ElementTree.parse(file).getroot().iter("model"):
            if element.get("name") != model or element.find("feature") is None and element.find("model") is None:
                continue
            found: set[str] = set()
            parent = element.find("model")
            if parent is not None:
                found |= cpu_map_features(folder, parent.get("name", ""))
            for feature in element.findall("feature"):
                name = feature.get("name", "")
                if feature.get("removed") == "yes":
                    found.discard(name)
                elif feature.get("added") != "yes":
                    found.add(name)
            return found
    return set()


def labels(arguments: argparse.Namespace) -> dict[str, str]:
    """Return all labels of the node."""
    domain = ElementTree.parse(arguments.domcapabilities).getroot()
    baseline = ElementTree.parse(arguments.baseline).getroot()
    host = ElementTree.parse(arguments.capabilities).getroot()
    mask = set(filter(None, arguments.mask.split(",")))
    obsolete = set(OBSOLETE) | {f"{name}-v1" for name in OBSOLETE} | set(filter(None, arguments.obsolete.split(",")))
    minimum_name = arguments.minimum
    minimum = set(PENRYN) if minimum_name == "Penryn" else cpu_map_features(arguments.cpu_map, minimum_name)
    result: dict[str, str] = {}

    def put(prefix: str, name: str, value: str = "true") -> None:
        if KEY.fullmatch(name):
            result[f"{prefix}/{name}"] = value

    supported = {f.get("name", "") for f in baseline.iter("feature") if f.get("policy") == "require"} - mask
    for feature in supported - minimum:
        put("cpu-feature.node.kubevirt.io", feature)
    if minimum <= supported:
        put("cpu-minimum.node.drydock.dev", minimum_name)

    # Maps the name of each model that has the attribute `usable` to its versioned name.
    version: dict[str, str] = {}
    usable: set[str] = set()
    for element in domain.find("cpu").iter("model"):
        name, verdict = (element.text or "").strip(), element.get("usable")
        if not verdict or not name:
            continue
        version[name] = element.get("canonical") or name
        needs = cpu_map_features(arguments.cpu_map, name) | cpu_map_features(arguments.cpu_map, version[name]) if mask else set()
        if verdict != "no" and not needs & mask:
            usable.add(name)

    def is_obsolete(name: str) -> bool:
        same = {other for other in version if version[other] == version.get(name, name)} | {name, version.get(name, name)}
        return bool(same & obsolete)

    names = {name for name in usable if not is_obsolete(name)}
    names -= {version[name] for name in names if version[name] != name}
    for name in names:
        put("cpu-model.node.kubevirt.io", name)
        put("cpu-model-migration.node.kubevirt.io", name)

    for mode in domain.find("cpu").findall("mode"):
        if mode.get("name") != "host-model":
            continue
        model = mode.find("model")
        if model is not None:
            name = (model.text or "").strip()
            put("host-model-cpu.node.kubevirt.io", name)
            if is_obsolete(name):
                put("node-labeller.kubevirt.io", "obsolete-host-model")
            else:
                put("cpu-model-migration.node.kubevirt.io", name)
        vendor = mode.findtext("vendor", "").strip()
        if vendor:
            put("cpu-vendor.node.kubevirt.io", vendor)
        for feature in mode.findall("feature"):
            name = feature.get("name", "")
            if feature.get("policy") == "require" and name not in minimum | mask:
                put("host-model-required-features.node.kubevirt.io", name)

    architecture = host.findtext("host/cpu/arch")
    for guest in host.findall("guest"):
        arch = guest.find("arch")
        if arch is None or arch.get("name") != architecture:
            continue
        for machine in arch.findall("machine"):
            if machine.text != "none" and machine.get("deprecated") != "yes":
                put("machine-type.node.kubevirt.io", (machine.text or "").strip())
    counter = host.find("host/cpu/counter[@name='tsc']")
    if counter is not None:
        put("cpu-timer.node.kubevirt.io", "tsc-frequency", counter.get("frequency", ""))
        put("cpu-timer.node.kubevirt.io", "tsc-scalable", "true" if counter.get("scaling") == "yes" else "false")
    if arguments.realtime:
        put("kubevirt.io", "realtime")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("domcapabilities", type=Path)
    parser.add_argument("baseline", type=Path)
    parser.add_argument("capabilities", type=Path)
    parser.add_argument("--obsolete", default="")
    parser.add_argument("--minimum", default="Penryn")
    parser.add_argument("--mask", default="")
    parser.add_argument("--cpu-map", type=Path, default=Path("/usr/share/libvirt/cpu_map"))
    parser.add_argument("--realtime", action="store_true")
    print(json.dumps(labels(parser.parse_args()), indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
