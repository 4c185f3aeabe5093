"""Import cycles between files."""

import unittest

from verify.cycles import crate_cycles, cycles, imported

MODULES = [(), ("a",), ("a", "b"), ("a", "c"), ("d",), ("d", "e")]


class Cycles(unittest.TestCase):
    def test_uses_and_paths_are_imports(self) -> None:
        for text, own, expected in (
            ("use crate::d::Thing;", ("a",), {("d",)}),
            ("use crate::{\n    a::b::{self, X as Y},\n    d::e::{Z, f},\n};", ("d", "q"), {("a", "b"), ("d", "e")}),
            ("use super::c;\nfn f() { c::g() }", ("a", "b"), {("a", "c")}),
            ("use b::X;", ("a",), {("a", "b")}),
            ("fn f() -> crate::d::e::T { super::super::d::g() }", ("a", "b"), {("d", "e"), ("d",)}),
            # Items of parent modules are not imports, and other crates are not files of this crate.
            ("use super::X;\nuse crate::Y;\nuse std::fmt;", ("a", "b"), set()),
            ("// use crate::d::X;\nconst T: &str = \"crate::d::X\";\n#[cfg(test)]\nmod tests {\n    use crate::d::X;\n}", ("a",), set()),
        ):
            self.assertEqual(imported(text, own, MODULES), expected, text)

    def test_only_groups_that_import_each_other_are_cycles(self) -> None:
        one, two, three, four = ("1",), ("2",), ("3",), ("4",)
        self.assertEqual(cycles({one: {two}, two: {three}, three: set()}), [])
        self.assertEqual(cycles({one: {two}, two: {three}, three: {one}, four: {one}}), [[one, two, three]])

    def test_cycle_of_a_crate_names_the_files(self) -> None:
        files = {
            "c/src/lib.rs": "mod a;\nmod d;",
            "c/src/a.rs": "mod b;\nuse b::X;\nuse crate::d::Y;",
            "c/src/a/b.rs": "use super::Z;",
            "c/src/d.rs": "use crate::a::b::X;",
        }
        self.assertEqual(crate_cycles(files, "c/src"), [])
        files["c/src/d.rs"] = "use crate::a::Z;"
        self.assertEqual(crate_cycles(files, "c/src"), [["c/src/a.rs", "c/src/d.rs"]])
