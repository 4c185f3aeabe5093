"""Tests the parser of Containerfiles: results for valid input, and errors with file and line for other input."""

from __future__ import annotations

import unittest
from pathlib import Path

from oci.containerfile import Instruction, Refused, parse, parse_text

REPOSITORY = Path(__file__).resolve().parents[3]


def refusal(text: str) -> str:
    """Return the error message with which a text is rejected."""
    try:
        parse_text(text, "Containerfile")
    except Refused as error:
        return str(error)
    raise AssertionError(f"not refused: {text!r}")


class Parsing(unittest.TestCase):
    def test_continuations_comments_and_lines(self) -> None:
        text = "# head\nARG A=1\n\nFROM debian:${A}-slim\nRUN one \\\n    # why\n    && two \\\n\n    && three\nUSER 1\n"
        found = [(item.line, item.keyword, item.text) for item in parse_text(text, "f")]
        self.assertEqual(
            found,
            [
                (2, "ARG", "A=1"),
                (4, "FROM", "debian:${A}-slim"),
                (5, "RUN", "one && two && three"),
                (10, "USER", "1"),
            ],
        )

    def test_flags_of_copy(self) -> None:
        (_, copy) = parse_text("FROM scratch\ncopy --chown=107:107 --chmod=0755 a b /c/\n", "f")
        self.assertEqual(dict(copy.flags), {"chown": "107:107", "chmod": "0755"})
        self.assertEqual(copy.words(), ["a", "b", "/c/"])

    def test_exec_and_shell_form(self) -> None:
        text = 'FROM scratch\nENTRYPOINT ["/bin/a", "b c"]\nCMD echo hi\n'
        _, entry, command = parse_text(text, "f")
        self.assertEqual(entry.exec_form(), ["/bin/a", "b c"])
        self.assertIsNone(command.exec_form())

    def test_refused_with_file_and_line(self) -> None:
        cases = {
            "FROM scratch\nVOLUME /x\n": "Containerfile:2: VOLUME is not supported",
            "FROM scratch\n\nCOPY --from=a b c\n": "Containerfile:3: COPY --from=a is not supported",
            "FROM scratch\nRUN --mount=type=cache true\n": "Containerfile:2: RUN --mount=type=cache",
            "FROM scratch\nRUN cat <<EOF\n": "Containerfile:2: here-documents",
            "FROM scratch\nUSER\n": "Containerfile:2: USER without an argument",
            "RUN true\nFROM scratch\n": "Containerfile:1: RUN before FROM",
            "FROM a\nFROM b\n": "Containerfile:2: a second FROM",
            "# nothing\n": "Containerfile:1: there is no FROM",
        }
        for text, reason in cases.items():
            with self.subTest(text=text):
                self.assertIn(reason, refusal(text))

    def test_the_recipes_of_the_repository_are_within_the_subset(self) -> None:
        recipes = sorted((REPOSITORY / "deploy" / "images").glob("*/Containerfile"))
        self.assertGreaterEqual(len(recipes), 3)
        for recipe in recipes:
            parse(recipe)


class Variables(unittest.TestCase):
    item = Instruction("f", 7, "ENV", "A=$B C='$B d'")

    def test_replaced(self) -> None:
        self.assertEqual(self.item.expand(r"$B-${B}_\$B", {"B": "x"}), "x-x_$B")
        self.assertEqual(self.item.pairs({"B": "x"}), {"A": "x", "C": "x d"})

    def test_unknown_or_too_clever(self) -> None:
        for text, reason in (
            ("$NO", "NO is not set"),
            ("${B:-x}", "only $NAME"),
            ("${B", "only $NAME"),
            ("$", "only"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(Refused, "f:7: ") as caught:
                self.item.expand(text, {"B": "x"})
            self.assertIn(reason, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
