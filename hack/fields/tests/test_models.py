"""Tests reading the fields of generated types with their names in the API."""

import io
import json
import tarfile
import tempfile
import unittest
from pathlib import Path

from oci.progress import Failure

from fields.models import Models

SPEC = """
export interface V1Spec {
  /**
   * Not a field?: string;
   */
  disks?: Array<V1Disk>;
  _exec?: string;
  selector: { [key: string]: string };
  affinity?: K8sIoAffinity;
  template?: V1VirtualMachineInstanceTemplateSpec;
}
export function V1SpecFromJSONTyped(json: any, _ignoreDiscriminator: boolean): V1Spec {
  return {
    disks: !exists(json, 'disks')
      ? undefined
      : (json['disks'] as Array<any>).map(V1DiskFromJSON),
    _exec: !exists(json, 'exec') ? undefined : json['exec'],
    selector: json['selector'],
  };
}
"""


def package(files: dict[str, str], folder: str) -> Path:
    """Pack files in the same way as the client of the package registry."""
    path = Path(folder) / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


class ModelsTest(unittest.TestCase):
    """Tests the paths of fields and the errors of broken packages."""

    def test_paths_name_lists_and_stop_at_kubernetes_own_types(self) -> None:
        """Paths have the names of the API, not those of TypeScript."""
        files = {
            "package.json": json.dumps({"version": "1.2.3"}),
            "kubevirt/models/V1Spec.ts": SPEC,
            "kubevirt/models/V1Disk.ts": "export interface V1Disk {\n  name: string;\n}\n",
            "kubevirt/models/K8sIoAffinity.ts": "export interface K8sIoAffinity {\n  nodeAffinity?: string;\n}\n",
        }
        with tempfile.TemporaryDirectory() as folder:
            models = Models.of_package(package(files, folder))
        self.assertEqual(models.version, "1.2.3")
        self.assertEqual(
            list(models.paths("V1Spec", "spec")),
            [
                "spec.disks[]",
                "spec.disks[].name",
                "spec.exec",
                "spec.selector",
                "spec.affinity",
                "spec.template",
                "spec.template.metadata",
                "spec.template.spec",
            ],
        )
        with self.assertRaisesRegex(Failure, "no type V1Other"):
            list(models.paths("V1Other", "spec"))

    def test_a_file_that_is_no_package_is_refused(self) -> None:
        """The error message contains the file name."""
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "other.tgz"
            other.write_text("not an archive")
            with self.assertRaisesRegex(Failure, "other.tgz"):
                Models.of_package(other)
            with self.assertRaisesRegex(Failure, "not a packed package"):
                Models.of_package(package({}, folder))


if __name__ == "__main__":
    unittest.main()
