"""Static checks of sources and documents."""

import re
import unittest

from verify.runner import REPOSITORY
from verify.style import (
    FUNCTION_LINES,
    TEST_NAME,
    lint_differences,
    long_functions,
    long_test_names,
    missing_paths,
    missing_tests,
    pronouns_in_test_names,
    python_names,
    rust_names,
    python_comments,
    rust_comments,
    speech_names,
    speech_comments,
    speech_texts,
    vague_comments,
)


class Commands(unittest.TestCase):
    def test_every_command_has_a_row(self) -> None:
        hack = REPOSITORY / "hack"
        lines = (hack / "README.md").read_text().splitlines()
        rows = "\n".join(line.split(" | ")[0] for line in lines if line.startswith("| `"))
        commands = [path.name for path in hack.iterdir() if path.is_file() and not path.suffix]
        self.assertGreater(len(commands), 5)
        self.assertEqual([name for name in commands if not re.search(rf"`hack/{name}[` ]", rows)], [])


class NamedTests(unittest.TestCase):
    def test_names_are_whole_or_cut_and_anything_else_is_no_name(self) -> None:
        known = {"a_guest_moves_home_again", "a_guest_that_is_paused_stays"}
        row = "| `a_guest_moves_home_again`, `a_guest_that_is_…`, `cpu_map`, `a_guest_moves_far_away`, `no_such_…` |"
        self.assertEqual(missing_tests(f"`not_in_a_table_at_all`\n{row}\n", known), ["a_guest_moves_far_away", "no_such"])

    def test_paths_are_whole_and_of_the_repository(self) -> None:
        text = "`hack/up`, `controller/core/none.rs`, `status/x`, hack/none and `hack/up --name x`"
        self.assertEqual(missing_paths(text, lambda name: name == "hack/up"), ["controller/core/none.rs"])

    def test_long_names_of_tests_are_found_in_both_languages(self) -> None:
        longest, longer = "a" * TEST_NAME, "b" * (TEST_NAME + 1)
        rust = "#[tokio::test(start_paused = true)]\n    #[ignore = \"slow\"]\n    async fn {}() {{}}\n#[test]\nfn {}() {{}}\n"
        python = "    def test_{}(self) -> None:\n    def test_{}(self) -> None:\n"
        for text in (rust, python):
            self.assertEqual(long_test_names(text.format(longest, longer)), [longer])
        self.assertEqual(long_test_names(f"fn {longer}() {{}}\ndef {longer}():\n"), [])

    def test_pronouns_are_found_in_the_names_of_tests_alone(self) -> None:
        text = "#[test]\nfn who_waits_is_first() {{}}\n#[test]\nfn item_waits_with_limits() {{}}\nfn it_waits() {{}}\n"
        self.assertEqual(pronouns_in_test_names(text), ["who_waits_is_first"])
        python = "".join(f"    def {name}(self) -> None:\n" for name in ("test_what_waits", "test_item_waits", "its"))
        self.assertEqual(pronouns_in_test_names(python), ["what_waits"])

    def test_verbs_of_speech_are_found_in_names_alone(self) -> None:
        defined = "fn was_told(asked: u8) { let AnswerKind { said, .. } = x; let f = |word| word; } const LOOK_AGAIN: u8 = 1;"
        names = ["was_told", "asked", "AnswerKind", "said", "word", "LOOK_AGAIN"]
        self.assertEqual(speech_names(rust_names(defined)), names)
        skipped = """/// Is told what was `said`.
            fn lookup<'answer>(task: &'answer str) { let essay = b'"'; /* heard */ let c = '\\''; }
            const TEXT: &str = "says \\"words\\""; const RAW: &str = r#"ask "him" to tell"#; let overlooked = password;"""
        self.assertEqual(speech_names(rust_names(skipped)), [])

    def test_verbs_of_speech_are_found_in_python(self) -> None:
        text = 'def ask(a_word: str) -> None:\n    """What it says."""\n    said = "told"  # answer\n'
        self.assertEqual(speech_names(python_names(text)), ["ask", "a_word", "said"])

    def test_messages_have_none_outside_comments(self) -> None:
        source = '''
            // "he said so"
            #[expect(dead_code, reason = "it was asked for")]
            fn f() -> &'static str {
                let bytes = br#"tell me"#;
                warn!("nobody \\
                       answered in time");
                "asked" // a single word is a name
            }
#[cfg(test)]
mod tests {
    const CASE: &str = "it is told later";
}
'''
        self.assertEqual(speech_texts(source), ["nobody answered in time", "it is told later"])
        self.assertEqual(speech_texts('fn f() { "the last word of \\"it\\"" }'), [])

    def test_comments_have_no_verbs_of_speech(self) -> None:
        source = """
            /// What it says.
            fn f() { // a comment behind code is not read
                //! The last word, looked up.
                let url = "http://said";
            }
"""
        self.assertEqual(speech_comments(rust_comments(source)), ["What it says."])

    def test_comments_without_a_subject_are_found(self) -> None:
        lines = ["Waits until nobody uses it.", "Send so many bytes.", "What is shown.", "A user resumes it.", "As many as there are."]
        self.assertEqual(vague_comments(lines), lines[:3])

    def test_docstrings_and_comments_of_python_are_read(self) -> None:
        source = '''
"""The module.

It asks nobody.
"""
def f(text="who said it"):
    """Tell nothing."""
    g("what it says")  # answered elsewhere
'''
        expected = ["answered elsewhere", "It asks nobody.", "Tell nothing."]
        self.assertEqual(speech_comments(python_comments(source)), expected)

    def test_functions_with_a_line_too_many_are_found(self) -> None:
        def function(header: str, lines: int, indentation: str = "") -> str:
            body = [f"{indentation}    if a {{", f"{indentation}        b();", f"{indentation}    }}"]
            body += [f"{indentation}    c();"] * (lines - len(header.splitlines()) - len(body) - 1)
            return "\n".join([*(indentation + line for line in header.splitlines()), *body, indentation + "}", ""])

        signature = 'pub(super) async unsafe extern "C" fn longer(\n    a: [u8; 4],\n)\nwhere\n    A: B,\n{'
        source = "trait A {\n    fn declared(\n        &self,\n    ) -> u8;\n    fn empty(&self) {}\n}\n"
        source += function("fn longest() {", FUNCTION_LINES) + function(signature, FUNCTION_LINES + 1)
        source += "impl A {\n" + function("pub const fn method(&self) {", FUNCTION_LINES + 2, "    ") + "}\n"
        self.assertEqual(long_functions(source), [("longer", FUNCTION_LINES + 1), ("method", FUNCTION_LINES + 2)])
        self.assertEqual(len(long_functions(function("fn longest() {", 81))), 1)

    def test_crate_has_the_lints_of_the_workspace_and_exceptions(self) -> None:
        common = {"rust": {"unsafe_code": "forbid"}, "clippy": {"todo": "deny"}}
        own = {("rust", "unsafe_code")}
        self.assertEqual(lint_differences(common, {"lints": {"workspace": True}}, set()), [])
        self.assertEqual(lint_differences(common, {}, set()), ["clippy.todo", "rust.unsafe_code"])
        manifest = {"lints": {"rust": {"unsafe_code": "deny"}, "clippy": {"todo": "deny"}}}
        self.assertEqual(lint_differences(common, manifest, own), [])
        self.assertEqual(lint_differences(common, manifest, set()), ["rust.unsafe_code"])
        self.assertEqual(lint_differences(common, {"lints": {"rust": {"x": "warn"}}}, own), ["clippy.todo", "rust.x"])


if __name__ == "__main__":
    unittest.main()
