"""Counts of admitted and refused manifests."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from embedded.errors import Failure
from verify.corpus import Report, files

OUTPUT = """\
virtualmachine.kubevirt.io/a created (server dry run)
secret/b created (server dry run)
virtualmachineinstance.kubevirt.io/c created (server dry run)
"""
ERRORS = """\
The request is invalid: spec.domain.devices.gpus: not supported by Drydock 0.1.0
The VirtualMachine "two" is invalid:
* spec.template.spec.volumes[1].hostDisk: not supported by Drydock 0.1.0
* spec.template.spec.volumes[2].hostDisk: not supported by Drydock 0.1.0
* spec.template.metadata.annotations[hooks.kubevirt.io/hookSidecars]: not supported
error: resource mapping not found for name: "d" namespace: "" from "x.yaml": no matches for kind "DataVolume"
"""


class TestCorpus(unittest.TestCase):
    def test_objects_are_counted_once_for_each_field(self) -> None:
        report = Report()
        report.add(OUTPUT, ERRORS)
        report.add(OUTPUT, "")
        self.assertEqual((report.admitted, report.refused), (4, 2))
        self.assertEqual(
            dict(report.by_field),
            {
                "spec.domain.devices.gpus": 1,
                "spec.template.spec.volumes[].hostDisk": 1,
                "spec.template.metadata.annotations[hooks.kubevirt.io/hookSidecars]": 1,
            },
        )
        self.assertEqual(report.lines()[-1], "6 objects: 4 admitted (66 %), 2 refused")

    def test_an_empty_folder_is_no_error(self) -> None:
        self.assertEqual(Report().lines(), ["0 objects: 0 admitted (0 %), 0 refused"])

    def test_files_are_found_in_folders_by_the_endings(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "inner").mkdir()
            for name in ("b.yml", "inner/a.yaml", "c.txt", "d.json"):
                (root / name).write_text("")
            found = [str(path.relative_to(root)) for path in files(root)]
        self.assertEqual(found, ["b.yml", "d.json", "inner/a.yaml"])
        with self.assertRaisesRegex(Failure, "neither a file nor a folder"):
            files(Path("/nonexistent"))
