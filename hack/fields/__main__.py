"""hack/record-kubevirt-fields PACKAGE FILE: records the fields of KubeVirt's v1 API.

PACKAGE is a packed copy of @kubevirt-ui/kubevirt-api, whose TypeScript types are
generated from KubeVirt's API. The command writes one line to FILE for each field in
the specs of the kinds below: the kind and the path, in which `[]` marks a list. It
omits the fields of Kubernetes' own types, and those of a template of virtual machine
instances, which are the same as in VirtualMachineInstance.
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
    """Record the fields of all kinds and return the exit code."""
    parser = argparse.ArgumentParser(prog="hack/record-kubevirt-fields", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("package", type=Path, help="packed copy (.tgz) of @kubevirt-ui/kubevirt-api")
    parser.add_argument("file", type=Path, help="file to which the fields are written")
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
