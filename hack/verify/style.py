"""Runs static checks of sources and documents."""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

from embedded.progress import Progress

from . import browser, cycles, dependencies, page_commands, reference, removal, rule_table, shared_names
from .outcome import Outcome
from .runner import REPOSITORY
from .runner import run as command


CHECKS = {
    "cargo fmt": ["cargo", "fmt", "--all", "--check"],
    "cargo clippy": ["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
}


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Check the formatting, the lints, and the conventions for documents and code."""
    outcome = Outcome()
    for name, argv in CHECKS.items():
        with progress.step(name):
            _, code = command(argv, quiet=True)
        outcome.count(name, code == 0)
    for name, found in {**_strangers(), **_missing_tests(), **_missing_paths(), **page_commands.check(), **rule_table.check(), **_conventions()}.items():
        for line in found:
            progress.note(f"  {line}")
        outcome.count(name, not found)
    return outcome


def missing_tests(text: str, known: set[str]) -> list[str]:
    """Return the tests that a table in a document names and that do not exist. The prefix of a name ends with `_…`."""
    missing = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        for name, cut in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)(_…)?`", line):
            # A name with fewer words is a field or a folder.
            if cut and not any(one.startswith(f"{name}_") for one in known):
                missing.append(name)
            elif not cut and name.count("_") > 3 and name not in known:
                missing.append(name)
    return missing


def _missing_tests() -> dict[str, list[str]]:
    # Names of metrics are as long as those of tests.
    known = {name for name, _ in removal.TESTS} | reference.metric_names()
    tracked, _ = command(["git", "ls-files", "*.rs"], quiet=True)
    for source in tracked.split():
        known.update(re.findall(r"\bfn ([a-z0-9_]+)", (REPOSITORY / source).read_text(errors="replace")))
    for file in browser.TESTS.glob("test_*.py"):
        known.update(re.findall(r"\bdef (test_[a-z0-9_]+)", file.read_text()))
    found = []
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "tests").glob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]
    for name in (str(page.relative_to(REPOSITORY)) for page in sorted(pages)):
        found += [f"{name}: {test}" for test in missing_tests((REPOSITORY / name).read_text(), known)]
    return {"tests named in documents exist": found}


def missing_paths(text: str, exists: Callable[[str], bool]) -> list[str]:
    """Return the files and folders of the repository that a document names in backticks and that do not exist."""
    named = re.findall(r"`((?:agent|controller|deploy|hack|tests)/[A-Za-z0-9_./-]+)`", text)
    return [name for name in named if not exists(name)]


def _missing_paths() -> dict[str, list[str]]:
    tracked, _ = command(["git", "ls-files", "*.md"], quiet=True)
    found = []
    for page in tracked.split():
        text = (REPOSITORY / page).read_text()
        found += [f"{page}: {name}" for name in missing_paths(text, lambda name: (REPOSITORY / name).exists())]
    return {"files named in documents exist": found}


# The maximum length of a test's name: it can state subject, condition and result, and fits into a line of output.
TEST_NAME = 60

_TESTS = re.compile(r"#\[(?:tokio::)?test\b[^\]]*\](?:\s*#\[[^\]]*\])*\s*(?:async\s+)?fn (\w+)|\bdef test_(\w+)")


def long_test_names(text: str) -> list[str]:
    """Return the names of tests, in Rust or Python, that are too long."""
    names = (found[1] or found[2] for found in _TESTS.finditer(text))
    return [name for name in names if len(name) > TEST_NAME]


# Pronouns, for which a reader has to find the noun. "One" is missing because it is also a number.
PRONOUNS = frozenset(
    "it its itself what who whom whose whoever whatever they them their themselves nobody somebody anybody everybody ours".split()
)


def pronouns_in_test_names(text: str) -> list[str]:
    """Return the names of tests, in Rust or Python, that contain a pronoun instead of a subject."""
    names = (found[1] or found[2] for found in _TESTS.finditer(text))
    return [name for name in names if PRONOUNS & set(name.split("_"))]


# Verbs of speech, which are no names for state and I/O: they do not show whether something is sent, read, reported or polled,
# and a search for one of them has too many results.
SPEECH = frozenset(
    """
    say says said saying unsaid tell tells told telling ask asks asked asking asker askers unasked
    hear hears heard hearing hearer hearers unheard answer answers answered answering word words speak speaks speaking spoken
    look looks looked looking
    """.split()
)

# Exceptions: the prefix of the paths of files, the names that are allowed in these files, and the reason.
SPEECH_ALLOWED = (
    ("agent/", {"word", "words", "take_word"}, "32-bit words of libvirt's XDR messages and of disk images' headers"),
    (
        "controller/cli/",
        {"word", "words", "Words", "words_are_those_of_the_command_line"},
        "words of a command line, which a shell completes",
    ),
    ("controller/view/", {"word", "words"}, "words of a text that is wrapped or coloured"),
    ("hack/", {"word", "words"}, "words of a command line, and those that select tests"),
    ("hack/oci/layer.py", {"tell"}, "the position in a file, as Python calls it"),
    ("hack/verify/style.py", {"_SPEECH_WORD"}, "the verbs that this check finds"),
)

# Matches comments, raw strings, characters and lifetimes in order to skip them; the named groups are strings and names.
_RUST = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(\#*)".*?"\1|[bc]?"(?P<text>(?:\\.|[^"\\])*)"|b?'(?:\\[^\n]+?|[^\\'\n])'|'\w+|(?P<name>[A-Za-z_]\w*)""",
    re.DOTALL,
)


def rust_names(text: str) -> list[str]:
    """Return the names in Rust code."""
    return [name for found in _RUST.finditer(text) if (name := found["name"])]


def python_names(text: str) -> list[str]:
    """Return the names in Python code, without those in formatted strings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.NAME]


def speech_names(all_names: Iterable[str]) -> list[str]:
    """Return the names that contain a verb of speech, without duplicates, in the original order."""
    names = dict.fromkeys(all_names)
    parts = {name: re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name) for name in names}
    return [name for name in names if SPEECH & {part.lower() for part in parts[name]}]


_LINT_REASON = re.compile(r'\breason = "(?:\\.|[^"\\])*"')
_SPEECH_WORD = re.compile(r"[A-Za-z]+")


def speech_texts(text: str) -> list[str]:
    """Return the messages and names of test cases in Rust code, i.e. strings of several words, that contain a verb of speech."""
    code = _LINT_REASON.sub("", text)
    texts = [re.sub(r"\\\n\s*", "", found["text"]) for found in _RUST.finditer(code) if found["text"]]
    return [one for one in texts if " " in one and (SPEECH - {"word", "words"}) & {word.lower() for word in _SPEECH_WORD.findall(one)}]


# Words with other meanings in comments: a word of memory or of a command line, and looking something up.
_OTHER_MEANINGS = frozenset("word words look looks looked looking".split())

_COMMENT = re.compile(r"^\s*//[/!]?(.*)$", re.MULTILINE)

# Files whose comments show a wire format that contains such a word, and the allowed words.
COMMENTS_ALLOWED = {"agent/src/tunnel/local.rs": {"answer"}}


def rust_comments(text: str) -> list[str]:
    """Return the lines of comments in Rust code."""
    return [found[1].strip() for found in _COMMENT.finditer(text)]


def python_comments(text: str) -> list[str]:
    """Return the lines of comments and docstrings in Python code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            lines += (ast.get_docstring(node) or "").splitlines()
    return lines


def speech_comments(lines: Iterable[str]) -> list[str]:
    """Return the lines that contain a verb of speech."""
    return [line for line in lines if (SPEECH - _OTHER_MEANINGS) & {word.lower() for word in _SPEECH_WORD.findall(line)}]


# Pronouns for components and users, amounts without a reference, and clauses without a noun: a reader has to guess what they
# mean.
_VAGUE = re.compile(r"\b(nobody|somebody|anybody|whoever|so many|so much|what is|one that)\b", re.IGNORECASE)


def vague_comments(lines: Iterable[str]) -> list[str]:
    """Return the lines that contain a vague word instead of naming their subject."""
    return [line for line in lines if _VAGUE.search(line)]


def _comments(path: str, text: str) -> list[str]:
    return python_comments(text) if path.endswith(".py") else rust_comments(text)


def _speech_comments(path: str, text: str) -> list[str]:
    allowed = COMMENTS_ALLOWED.get(path, set())
    lines = _comments(path, text)
    return [f"{path}: {line}" for line in speech_comments(lines) if not allowed & set(_SPEECH_WORD.findall(line))]


def _speech(path: str, text: str) -> list[str]:
    allowed = {name for beginning, names, _ in SPEECH_ALLOWED if path.startswith(beginning) for name in names}
    names = python_names(text) if path.endswith(".py") else rust_names(text)
    return [f"{path}: {name}" for name in speech_names(names) if name not in allowed]


# The maximum length of a function, which fits on two screens. Longer functions are split: steps with a meaning of their own and
# tables of cases become functions.
FUNCTION_LINES = 80

_FUNCTION = re.compile(r'( *)(?:pub(?:\([^)]*\))? )?(?:(?:default|const|async|unsafe|extern(?: "[^"]*")?) )*fn (\w+)')


def long_functions(text: str) -> list[tuple[str, int]]:
    """Return the names and lengths of too long functions in Rust code formatted by rustfmt, from `fn` to the closing brace."""
    lines = text.splitlines()
    found = []
    for first, line in enumerate(lines):
        if not (function := _FUNCTION.match(line)):
            continue
        # A header that ends with `;` or `}` has no body, or an empty one.
        header = next((line for line in lines[first:] if line.endswith(("{", ";", "}"))), "")
        if header.endswith("{"):
            last = next((at for at in range(first, len(lines)) if lines[at] == function[1] + "}"), len(lines) - 1)
            if (length := last - first + 1) > FUNCTION_LINES:
                found.append((function[2], length))
    return found


def _long_functions(path: str, text: str) -> list[str]:
    return [f"{path}: {name}: {length} lines" for name, length in long_functions(text)]


# The maximum size of README.md: as much as a new reader can take in.
README_BYTES = 6 * 1024

# The only crate with `unsafe` code denies this lint; all others forbid it.
OWN_LINTS = {"agent/host/Cargo.toml": {("rust", "unsafe_code")}}


def lint_differences(common: dict, manifest: dict, own: set[tuple[str, str]]) -> list[str]:
    """Return the lints in which a crate's manifest differs from the workspace's table, except those in `own`."""
    lints = manifest.get("lints", {})
    if lints.get("workspace") is True:
        return []
    tables = {*common, *lints}
    keys = {(table, lint) for table in tables for lint in {*common.get(table, {}), *lints.get(table, {})}}
    return sorted(
        f"{table}.{lint}"
        for table, lint in keys - own
        if common.get(table, {}).get(lint) != lints.get(table, {}).get(lint)
    )


# Modules of unit tests: the module under test declares them, and they import it.
_UNIT_TESTS = re.compile(r"/(examples|\w*tests)(/|\.rs)")

# Files that serve tests. They may have types and dependencies of their own.
_TEST_FILES = re.compile(r"(^|/)(tests|examples|fake|\w+_tests|\w*tests|fixture|simulation)(/|\.rs)")


def _conventions() -> dict[str, list[str]]:
    """Check conventions of the code base that no lint checks; return the problems by the name of the check."""
    tracked, _ = command(["git", "ls-files", "*Cargo.toml", "*.rs"], quiet=True)
    manifests = [name for name in tracked.split() if name.endswith("Cargo.toml") and name != "Cargo.toml"]
    common = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["lints"]
    different = [
        f"{name}: {lint}"
        for name in manifests
        for lint in lint_differences(common, tomllib.loads((REPOSITORY / name).read_text()), OWN_LINTS.get(name, set()))
    ]
    # Programs use types for errors; only tests and their helpers may use plain messages.
    untyped = [
        name
        for name in tracked.split()
        if name.endswith(".rs")
        and not name.startswith("tests/")
        and not re.search(r"(^|/)(tests|\w+_tests|test_client)(/|\.rs)", name)
        and re.search(r"\banyhow\b", (REPOSITORY / name).read_text())
    ]
    sources, _ = command(["git", "ls-files", "*.rs", "*.py"], quiet=True)
    long_names = [f"{name}: {test}" for name in sources.split() for test in long_test_names((REPOSITORY / name).read_text())]
    pronouns = [f"{name}: {test}" for name in sources.split() for test in pronouns_in_test_names((REPOSITORY / name).read_text())]
    speech = [
        line
        for name in sources.split()
        for line in _speech(name, (REPOSITORY / name).read_text())
    ]
    messages = [
        f"{name}: {message}"
        for name in tracked.split()
        if name.endswith(".rs")
        for message in speech_texts((REPOSITORY / name).read_text())
    ]
    comments = [
        line
        for name in sources.split()
        for line in _speech_comments(name, (REPOSITORY / name).read_text())
    ]
    vague = [
        f"{name}: {line}"
        for name in sources.split()
        for line in vague_comments(_comments(name, (REPOSITORY / name).read_text()))
        if name != "hack/verify/style.py"
    ]
    long = [
        line
        for name in tracked.split()
        if name.endswith(".rs")
        for line in _long_functions(name, (REPOSITORY / name).read_text())
    ]
    circles = [
        " and ".join(circle)
        for folder in sorted({f"{Path(name).parent}/src" for name in manifests})
        for circle in cycles.crate_cycles(
            {
                name: (REPOSITORY / name).read_text()
                for name in tracked.split()
                if name.startswith(folder + "/") and not _UNIT_TESTS.search(name.removeprefix(folder))
            },
            folder,
        )
    ]
    programs = {
        name: (REPOSITORY / name).read_text()
        for name in tracked.split()
        if name.endswith(".rs") and not name.startswith("tests/") and not _TEST_FILES.search(name)
    }
    needless = dependencies.of_crates(
        {name: (REPOSITORY / name).read_text() for name in tracked.split()}, lambda path: bool(_TEST_FILES.search(path))
    )
    size = (REPOSITORY / "README.md").stat().st_size
    return {
        "all crates have the same lints": different,
        "programs define types for errors": untyped,
        "crates use all their dependencies": needless,
        f"tests have names of at most {TEST_NAME} characters": long_names,
        "tests have names without pronouns": pronouns,
        "names contain no verbs of speech": speech,
        "messages contain no verbs of speech": messages,
        "comments contain no verbs of speech": comments,
        "comments name their subject": vague,
        "files have no import cycles": circles,
        f"functions have at most {FUNCTION_LINES} lines": long,
        "no two types have the same name": shared_names.shared_types(programs),
        f"at most {shared_names.MODULES} modules have the same name": shared_names.shared_modules(programs),
        "README.md is short": [f"{size} bytes; the maximum is {README_BYTES}"] if size > README_BYTES else [],
    }


def _strangers() -> dict[str, list[str]]:
    """Find files and lines that do not belong in the repository; return them by the name of the check."""
    tracked, _ = command(["git", "ls-files"], quiet=True)
    files = [REPOSITORY / name for name in tracked.split() if (REPOSITORY / name).is_file()]
    vague = re.compile(r"(^|/)(util|utils|common|helpers|misc)(\.rs|\.py|/)")
    unfinished = re.compile(r"\b(todo!|unimplemented!|TO" r"DO|FIX" r"ME)\b")
    found: dict[str, list[str]] = {"module names are specific": [], "no code is marked as unfinished": []}
    for file in files:
        name = str(file.relative_to(REPOSITORY))
        if vague.search(name):
            found["module names are specific"].append(name)
        if file.suffix in (".rs", ".py", ".sh", ".yaml"):
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
                if unfinished.search(line):
                    found["no code is marked as unfinished"].append(f"{name}:{number}: {line.strip()}")
    return found
