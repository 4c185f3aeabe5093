"""hack/record-kubevirt-fields PACKAGE FILE: records the fields of KubeVirt's v1 API.

PACKAGE is a packed copy of @kubevirt-ui/kubevirt-api, whose TypeScript types are
generated from KubeVirt's API. FILE gets one line for each field of the specs
of the kinds below: the kind and the path, lists as `[]`. Types of Kubernetes
itself are not walked, nor is a template of virtual machine instances, which
has the fields of VirtualMachineInstance.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from oci.progress import Failure

from fields.models import Models

KINDS = (
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceMigration",
    "VirtualMachineInstanceReplicaSet",
)


def main() -> int:
    """Record all kinds."""
    parser = argparse.ArgumentParser(prog="hack/record-kubevirt-fields", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("package", type=Path, help="packed copy (.tgz) of @kubevirt-ui/kubevirt-api")
    parser.add_argument("file", type=Path, help="file for the fields")
    options = parser.parse_args()
    try:
        models = Models.of_package(options.package)
        lines = [f"{kind} {path}" for kind in KINDS for path in models.paths(f"V1{kind}Spec", "spec")]
    except Failure as failure:
        print(f"hack/record-kubevirt-fields: {failure}", file=sys.stderr)
        return 1
    heading = f"# Fields of the specs of kubevirt.io/v1, recorded from @kubevirt-ui/kubevirt-api {models.version}."
    options.file.write_text("\n".join([heading, *sorted(lines)]) + "\n")
    return 0


sys.exit(main())
