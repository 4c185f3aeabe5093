"""Tests that layers are reproducible, and that the digests in layers and archives are correct."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

from oci import layer
from oci.builder import content_key, key_of
from oci.layout import Image, write_archive


class Scratch(unittest.TestCase):
    """A base class that gives each test a temporary folder."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="drydock-layers-")
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def tree(self, name: str) -> Path:
        root = self.scratch / name
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "b").write_text("two")
        (root / "etc" / "a").write_text("one")
        (root / "etc" / "a").chmod(0o640)
        (root / "link").symlink_to("/etc/a")
        os.link(root / "etc" / "a", root / "etc" / "same")
        return root

    def entries(self, made: layer.Layer) -> dict[str, tarfile.TarInfo]:
        with tarfile.open(fileobj=io.BytesIO(made.blob.read_bytes())) as archive:
            return {info.name: info for info in archive}


class Packing(Scratch):
    def test_same_tree_same_bytes(self) -> None:
        for compression in ("none", "gzip", "zstd"):
            one = layer.pack(self.tree(f"one-{compression}"), self.scratch / "1", "x", compression)
            two = layer.pack(self.tree(f"two-{compression}"), self.scratch / "2", "x", compression)
            self.assertEqual((one.digest, one.diff_id), (two.digest, two.diff_id))

    def test_entries_are_sorted_and_no_newer_than_the_epoch(self) -> None:
        made = layer.pack(self.tree("tree"), self.scratch / "blob", "x", "none")
        entries = self.entries(made)
        self.assertEqual(list(entries), ["etc", "etc/a", "etc/b", "etc/same", "link"])
        self.assertTrue(all(info.mtime <= layer.epoch() for info in entries.values()))
        self.assertEqual(entries["etc/a"].mode, 0o640)
        self.assertEqual((entries["etc/same"].islnk(), entries["etc/same"].linkname), (True, "etc/a"))
        self.assertEqual(entries["link"].linkname, "/etc/a")

    def test_digests_match_the_content(self) -> None:
        made = layer.pack(self.tree("tree"), self.scratch / "blob", "x", "zstd")
        blob = made.blob.read_bytes()
        self.assertEqual(made.digest, "sha256:" + hashlib.sha256(blob).hexdigest())
        self.assertEqual(made.size, len(blob))
        plain = subprocess.run(["zstd", "-dc"], input=blob, capture_output=True, check=True).stdout
        self.assertEqual(made.diff_id, "sha256:" + hashlib.sha256(plain).hexdigest())

    @unittest.skipUnless(os.geteuid() == 0, "only root may create devices")
    def test_removed_files_become_whiteouts(self) -> None:
        root = self.tree("tree")
        os.mknod(root / "etc" / "gone", 0o020000, os.makedev(0, 0))
        os.setxattr(root / "etc", "trusted.overlay.opaque", b"y")
        entries = self.entries(layer.pack(root, self.scratch / "blob", "x", "none"))
        self.assertIn("etc/.wh.gone", entries)
        self.assertIn("etc/.wh..wh..opq", entries)
        self.assertNotIn("etc/gone", entries)


class Archives(Scratch):
    def test_every_blob_exists_and_has_the_digest_in_the_name(self) -> None:
        made = layer.pack(self.tree("tree"), self.scratch / "blob", "x")
        image = Image([made, made], {"User": "1"}, [{"created_by": "x"}])
        path = self.scratch / "image.oci.tar"
        write_archive(image, ["localhost/a:dev", "localhost/b:dev"], path)
        with tarfile.open(path) as archive:
            files = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}  # type: ignore[union-attr]
        self.assertEqual(json.loads(files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
        blobs = {name.rpartition("/")[2]: data for name, data in files.items() if name.startswith("blobs/")}
        for digest, data in blobs.items():
            self.assertEqual(hashlib.sha256(data).hexdigest(), digest)
        manifests = json.loads(files["index.json"])["manifests"]
        self.assertEqual(
            [entry["annotations"]["io.containerd.image.name"] for entry in manifests],
            ["localhost/a:dev", "localhost/b:dev"],
        )
        manifest = json.loads(blobs[manifests[0]["digest"].removeprefix("sha256:")])
        for part in (manifest["config"], *manifest["layers"]):
            self.assertEqual(len(blobs[part["digest"].removeprefix("sha256:")]), part["size"])
        config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
        self.assertEqual(config["rootfs"]["diff_ids"], [made.diff_id, made.diff_id])
        self.assertEqual(manifests[0]["digest"], image.digest)


class Keys(Scratch):
    def test_depend_on_every_input_and_on_the_order(self) -> None:
        self.assertEqual(key_of("a", {"x": 1, "y": 2}), key_of("a", {"y": 2, "x": 1}))
        self.assertEqual(len({key_of("a"), key_of("a", ""), key_of("", "a"), key_of(["a"]), key_of("b")}), 5)

    def test_content_counts_times_do_not(self) -> None:
        one, two = self.tree("one"), self.tree("two")
        os.utime(two / "etc" / "a", (1, 1))
        self.assertEqual(content_key(one), content_key(two))
        (two / "etc" / "b").chmod(0o755)
        self.assertNotEqual(content_key(one), content_key(two))
        (two / "etc" / "b").chmod((one / "etc" / "b").stat().st_mode & 0o777)
        (two / "etc" / "b").write_text("too")
        self.assertNotEqual(content_key(one), content_key(two))
        (two / "etc" / "b").rename(two / "etc" / "c")
        self.assertNotEqual(content_key(one), content_key(two))


if __name__ == "__main__":
    unittest.main()
