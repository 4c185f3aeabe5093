"""Tests builds of `FROM scratch` images with real mounts: the content of layers, and their reuse."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from oci.builder import Builder, Built, LayerCache
from oci.containerfile import Refused
from oci.progress import Failure


@unittest.skipUnless(os.geteuid() == 0, "building images requires root privileges")
class Building(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="drydock-builder-")
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.context = self.scratch / "context"
        self.context.mkdir()
        (self.context / "program").write_text("#!/bin/sh\n")
        (self.context / "folder").mkdir()
        (self.context / "folder" / "inner").write_text("inner")
        (self.context / "folder" / "link").symlink_to("inner")
        self.cache = LayerCache(self.scratch / "cache")

    def build(self, text: str, **arguments: str) -> Built:
        recipe = self.context / "Containerfile"
        recipe.write_text(text)
        builder = Builder(self.cache, self.context, self.scratch / "logs", arguments, lambda reference: None)
        with contextlib.redirect_stdout(io.StringIO()):
            return builder.build("test", recipe)

    def test_copy(self) -> None:
        built = self.build(
            "FROM scratch\nARG PROFILE=none\nCOPY --chmod=0755 --chown=107:108 program /usr/bin/${PROFILE}\nCOPY folder /a/b\n"
            "COPY program folder/inner /c/\n",
            PROFILE="release",
        )
        first, second, third = built.roots
        program = (first / "usr/bin/release").stat()
        self.assertEqual((program.st_mode & 0o777, program.st_uid, program.st_gid), (0o755, 107, 108))
        self.assertEqual((second / "a/b/inner").read_text(), "inner")
        self.assertEqual(os.readlink(second / "a/b/link"), "inner")
        self.assertEqual(sorted(path.name for path in (third / "c").iterdir()), ["inner", "program"])
        self.assertEqual(
            sorted(path.name for path in third.iterdir()), ["c"], "only what the instruction changed"
        )

    def test_settings(self) -> None:
        built = self.build(
            'FROM scratch\nENV A=1 B="two words"\nENV C=$A\nLABEL x=y\nWORKDIR /w\nWORKDIR v\nUSER 65532:65532\n'
            'CMD ["gone"]\nENTRYPOINT ["/p"]\nCMD ["--flag"]\n'
        )
        self.assertEqual(
            built.image.settings,
            {
                "Env": ["A=1", "B=two words", "C=1"],
                "Labels": {"x": "y"},
                "WorkingDir": "/w/v",
                "User": "65532:65532",
                "Entrypoint": ["/p"],
                "Cmd": ["--flag"],
            },
        )

    def test_only_changed_stages_are_built_again(self) -> None:
        text = "FROM scratch\nCOPY folder /a\nCOPY program /p\n"
        one, again = self.build(text), self.build(text)
        self.assertEqual(one.image.digest, again.image.digest)
        (self.context / "program").write_text("#!/bin/sh\nexit 1\n")
        two = self.build(text)
        self.assertEqual(one.image.layers[0], two.image.layers[0])
        self.assertNotEqual(one.image.layers[1].digest, two.image.layers[1].digest)
        labelled = self.build(text + "LABEL a=b\n")
        self.assertEqual(two.image.layers, labelled.image.layers)
        self.assertNotEqual(two.image.digest, labelled.image.digest)

    def test_run_sees_layers_below_and_leaves_no_trace_of_the_build(self) -> None:
        busybox = shutil.which("busybox")
        if (
            busybox is None
            or b"dynamically"
            in subprocess.run(["file", "-L", busybox], capture_output=True, check=False).stdout
        ):
            self.skipTest("needs a static busybox")
        shutil.copy(busybox, self.context / "busybox")
        for name in ("bin", "dev", "proc", "etc"):
            (self.context / "root" / name).mkdir(parents=True)
        (self.context / "root" / "etc" / "hosts").touch()
        built = self.build(
            "FROM scratch\nARG WHO=nobody\nCOPY root /\nCOPY busybox /bin/busybox\nENV GREETING=hello\nUSER 107:107\n"
            'RUN ["/bin/busybox", "test", "-e", "/proc/self/fd"]\nUSER 0\n'
            'RUN ["/bin/busybox", "sh", "-ec", "b=/bin/busybox; echo $GREETING $WHO >/note; '
            '$b test -c /dev/null; $b test -s /etc/hosts; $b rm $b"]\n'
        )
        changed = built.roots[-1]
        self.assertEqual((changed / "note").read_text(), "hello nobody\n")
        self.assertEqual(sorted(path.name for path in changed.iterdir()), ["bin", "note"])
        self.assertEqual((changed / "bin" / "busybox").lstat().st_rdev, 0)
        self.assertEqual(list(built.roots[-2].iterdir()), [])

    def test_refusals_and_failures_name_the_place(self) -> None:
        cases = {
            "FROM ubuntu\n": "Containerfile:1: FROM ubuntu",
            "FROM scratch\nCOPY nothing /x\n": "Containerfile:2: COPY nothing: there is no such file",
            "FROM scratch\nCOPY ../x /x\n": "Containerfile:2: COPY ../x",
            "FROM scratch\nARG NO\n": "Containerfile:2: ARG NO",
            "FROM scratch\nCOPY program $WHERE\n": "Containerfile:2: variable WHERE",
            "ARG A=1\nFROM scratch\nLABEL a=$A\n": "Containerfile:3: variable A",
        }
        for text, reason in cases.items():
            with self.subTest(text=text), self.assertRaises(Refused) as caught:
                self.build(text)
            self.assertIn(reason, str(caught.exception))
        with self.assertRaises(Failure) as failed:
            self.build("FROM scratch\nCOPY program /p\nRUN true\n")
        self.assertIn("Containerfile:3: RUN failed with status", str(failed.exception))


if __name__ == "__main__":
    unittest.main()
