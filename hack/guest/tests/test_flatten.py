"""Tests the guest's parser of YAML and JSON with the guest's awk."""

from __future__ import annotations

import shutil
import subprocess
import unittest

from guest.disk import SOURCES

PROGRAM = SOURCES / "root" / "lib" / "drydock" / "flatten.awk"


@unittest.skipUnless(shutil.which("busybox"), "needs busybox")
class Flattening(unittest.TestCase):
    def flatten(self, text: str) -> dict[str, str]:
        command = ["busybox", "awk", "-f", str(PROGRAM)]
        lines = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        return dict(line.split("\t", 1) for line in lines.splitlines())

    def test_maps_lists_and_plain_values(self) -> None:
        text = (
            "#cloud-config\n# a comment\na: one  # why\nb:\n  c: http://x/#y\n  d:\n  - 1\n  - e: 2\n    f: 3\n"
            "  -\n    g: 4\nlist:\n- - x\n  - y\n- plain: text\nnull: ~\nempty:\nlast: two\n  words\n"
        )
        self.assertEqual(
            self.flatten(text),
            {
                "a": "one",
                "b.c": "http://x/#y",
                "b.d.0": "1",
                "b.d.1.e": "2",
                "b.d.1.f": "3",
                "b.d.2.g": "4",
                "list.0.0": "x",
                "list.0.1": "y",
                "list.1.plain": "text",
                "null": "",
                "empty": "",
                "last": "two words",
            },
        )

    def test_quotes(self) -> None:
        text = "a: \"x: \\\"y\\\" # no\"\nb: 'it''s'\n\"c d\": e\nf: \"two\n  lines\"\ng: 'a\\b'\n"
        expected = {"a": 'x: "y" # no', "b": "it's", "c d": "e", "f": "two lines", "g": "a\\\\b"}
        self.assertEqual(self.flatten(text), expected)

    def test_block_texts(self) -> None:
        text = "a: |\n  one\n    two\\n\n\n  three\nb: |-\n  x\nc: >\n  folded\n  text\n\n  next\nd: |+\n  y\n\ne: 1\n"
        self.assertEqual(
            self.flatten(text),
            {
                "a": "one\\n  two\\\\n\\n\\nthree\\n",
                "b": "x",
                "c": "folded text\\n\\nnext\\n",
                "d": "y\\n\\n",
                "e": "1",
            },
        )

    def test_flow_style_and_json(self) -> None:
        text = "a: { b: False, c: [1, 'two, three'], d: {} }\ne: [ sh, -c,\n  \"x; y\" ]\n"
        expected = {"a.b": "False", "a.c.0": "1", "a.c.1": "two, three", "e.0": "sh", "e.1": "-c", "e.2": "x; y"}
        self.assertEqual(self.flatten(text), expected)
        json = '{"instance-id":"a.b","n":{"l":[1,{"t":"x\\ny\\u0041"}],"e":null}}'
        self.assertEqual(
            self.flatten(json), {"instance-id": "a.b", "n.l.0": "1", "n.l.1.t": "x\\nyA", "n.e": ""}
        )

    def test_carriage_returns(self) -> None:
        self.assertEqual(self.flatten("a: 1\r\nb:\r\n- x\r\nc: |\r\n  t\r\n"), {"a": "1", "b.0": "x", "c": "t\\n"})


if __name__ == "__main__":
    unittest.main()
