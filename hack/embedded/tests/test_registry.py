"""Tests tiny images."""

from __future__ import annotations

import io
import tarfile
import unittest

from embedded.registry import PackedFile, TinyImage

IMAGE = TinyImage(
    {"bin/tool": PackedFile(b"content", 0o755), "bin/alias": PackedFile(link="tool")}, ["/bin/tool"]
)


class Layers(unittest.TestCase):
    def test_same_content_same_bytes(self) -> None:
        self.assertEqual(IMAGE.layer(), IMAGE.layer())

    def test_folders_come_before_the_files_within(self) -> None:
        with tarfile.open(fileobj=io.BytesIO(IMAGE.layer())) as archive:
            self.assertEqual(archive.getnames(), ["bin", "bin/alias", "bin/tool"])
            self.assertEqual(archive.getmember("bin/tool").mode, 0o755)
            self.assertEqual(archive.getmember("bin/alias").linkname, "tool")


if __name__ == "__main__":
    unittest.main()
