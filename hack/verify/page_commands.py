"""Checks that each command in the documents is executed by a test or by hack/demo, or has a reason not to be.

A command counts as executed if a test reads it from its page (`pages.py`, `Cluster::documented` of the Rust tests), or if its
words match a call of kubectl or of the plugin. All other commands need a reason in `EXEMPT`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import pages
from .pages import Command
from .runner import REPOSITORY
from .runner import run as command

PAGES = ("README.md", "*/README.md", "deploy/docs/*.md", "tests/*.md", "tests/*/README.md", "controller/*/README.md", "hack/*/README.md")

# Sources whose calls are executed on a cluster, and tests that execute commands without a cluster.
SOURCES = ("tests/tests/*.rs", "tests/src/*.rs", "tests/console/*.py", "hack/demonstration/*.py", "hack/verify/*.py", "hack/verify/tests/*.py")

# Example names in the documents, for which tests use other names.
PLACEHOLDERS = re.compile(
    r"\b(worker-\d(-disk)?|web|NAME|NAMESPACE|NODE|(shop/)?kubevirt-evacuation-\w+|tls\.(crt|key)|deploy/console)\b"
)

_BUILD = "hack/images builds these packages with a profile that compiles faster; test_pages.py checks that the packages exist"
_ENGINE = "no test machine has podman: hack/images builds the same Containerfiles, and test_pages.py checks that the files exist"
_WATCH = "the command does not end; tests run it without -w"

# Commands that nothing executes as written: the page, the beginning of the command, and the reason.
EXEMPT = (
    ("README.md", "kubectl drydock console", "each test in tests/console starts the console with options, because a test machine has no browser window"),
    ("deploy/README.md", "cargo build", _BUILD),
    ("deploy/README.md", "for image in base", _ENGINE),
    ("deploy/docs/console.md", "kubectl drydock console", "same reason as for README.md"),
    ("deploy/docs/console.md", "cargo build", _BUILD),
    ("deploy/docs/console.md", "podman build", _ENGINE),
    ("deploy/docs/console.md", "kubectl -n drydock port-forward", "tests/console/test_incluster.py forwards a free port instead"),
    ("deploy/docs/console.md", "kubectl -n drydock get secret", "tests/console/test_incluster.py reads and trusts this field by other means"),
    ("deploy/docs/console.md", "SSL_CERT_DIR", "the command needs an identity provider; a test adds a user's token like this proxy"),
    ("deploy/docs/drain.md", "kubectl delete vmim", "the controller generates the name; a test in tests/tests/drain.rs deletes all"),
    ("deploy/docs/kubectl-drydock.md", "cargo build", _BUILD),
    ("deploy/docs/kubectl-drydock.md", "install", "the command copies the program; tests run it in the build folder"),
    ("deploy/docs/kubectl-drydock.md", "kubectl drydock drain worker-1 worker-2", "tests/tests/cli.rs follows drains without a terminal"),
    ("deploy/docs/kubectl-drydock.md", "kubectl drydock check", "tests/tests/cli_check.rs runs the command with a separate function"),
    ("deploy/docs/labels.md", "drydock-agent inspect", "hack/demo explains another model with emulation, because a machine may lack KVM"),
    ("deploy/docs/maintenance.md", "kubectl get nm -w", _WATCH),
    ("deploy/docs/migration.md", "kubectl get vmim", _WATCH),
    ("deploy/docs/migration.md", "kubectl delete vmim", "tests cancel migrations by the same request, without kubectl"),
    ("deploy/docs/uninstall.md", "kubectl patch nodemaintenances", "no test has a NodeMaintenance without a controller; the patch is the same as for machines"),
    ("deploy/docs/uninstall.md", "kubectl taint node NODE", "no test has a NodeMaintenance without a controller"),
    ("deploy/docs/uninstall.md", "kubectl label node NODE", "no test has a NodeMaintenance without a controller"),
)


@dataclass(frozen=True)
class Call:
    """A call in a source file: the known text of each argument, with `ANY` for the unknown parts."""

    arguments: tuple[str, ...]

    def executes(self, words: Sequence[str]) -> bool:
        """Return whether the first arguments match the words of a command."""
        return len(words) <= len(self.arguments) and all(map(_fits, self.arguments, words))


ANY = "\0"


def _fits(argument: str, word: str) -> bool:
    """Return whether an argument matches the word of a page. Example names in the word match any name."""
    if argument.startswith("-") != word.startswith("-"):
        return False
    named = PLACEHOLDERS.sub(ANY, word)
    if named == word:
        return argument == word
    return re.fullmatch(".*".join(map(re.escape, named.split(ANY))), argument, re.DOTALL) is not None or argument == ANY


# Functions that execute their arguments as a command, and the words of the command before these arguments.
PROGRAMS = {
    "kubectl": ("kubectl",),
    "kubectl_begun": ("kubectl",),
    "kubectl_with": ("kubectl",),
    "plugin": ("kubectl", "drydock"),
}
# Functions that read a command from its page. The caller executes the result.
READERS = ("script", "arguments", "manifest")

_RUST_CALL = re.compile(r'\b(kubectl|kubectl_begun|kubectl_with|run|start)\(\s*(?:&?\w+,\s*)?&\[((?:"(?:[^"\\]|\\.)*"|[^"\[\]])*)\]')
_RUST_ARGUMENT = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*)"|[^,\s"][^,]*')
_RUST_READ = re.compile(r'\bdocumented\(\s*"([^"]+)",\s*"((?:[^"\\]|\\.)*)"')


def rust_calls(text: str) -> Iterator[Call]:
    """Yield the calls in a Rust source file."""
    for name, listed in _RUST_CALL.findall(text):
        arguments = [ANY if one["text"] is None else one["text"].replace('\\"', '"') for one in _RUST_ARGUMENT.finditer(listed)]
        yield Call((*PROGRAMS.get(name, PROGRAMS["plugin"]), *arguments))


def rust_reads(text: str) -> set[tuple[str, str]]:
    """Return the commands that a Rust source file reads from pages: the page, and the beginning of the command."""
    return {(page, beginning.replace('\\"', '"')) for page, beginning in _RUST_READ.findall(text)}


def _constants(tree: ast.Module) -> dict[str, str]:
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _argument(node: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_argument(part, constants) for part in node.values)
    return constants.get(node.id, ANY) if isinstance(node, ast.Name) else ANY


def _python_calls(text: str, names: Container[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    tree = ast.parse(text)
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in names:
                yield name, tuple(_argument(one, constants) for one in node.args)


def python_calls(text: str) -> Iterator[Call]:
    """Yield the calls in a Python source file."""
    for name, arguments in _python_calls(text, PROGRAMS):
        yield Call((*PROGRAMS[name], *arguments))


def python_reads(text: str) -> set[tuple[str, str]]:
    """Return the commands that a Python source file reads from pages: the page, and the beginning of the command."""
    found = _python_calls(text, READERS)
    return {(arguments[0], arguments[1]) for _, arguments in found if len(arguments) > 1 and arguments[0].endswith(".md")}


def unexecuted(
    found: Sequence[Command],
    calls: Sequence[Call],
    reads: Iterable[tuple[str, str]],
    exempt: Sequence[tuple[str, str, str]] = EXEMPT,
) -> list[str]:
    """Return the problems: commands that nothing executes, reasons that no command needs, and reads without a unique command."""
    wrong, read = [], []
    for page, beginning in sorted(reads):
        these = [one for one in found if one.page == page and one.text.startswith(beginning)]
        read += these
        if len(these) != 1:
            wrong.append(f"{page}: a test requires exactly one command that begins with {beginning}; found {len(these)}")
    needed = set()
    for one in found:
        if one in read or any(one.words == other.words and one.input == other.input for other in read):
            continue
        if one.is_plain and any(call.executes(one.words) for call in calls):
            continue
        reasons = [entry for entry in exempt if entry[0] == one.page and one.text.startswith(entry[1])]
        needed.update(reasons)
        if not reasons:
            wrong.append(f"{one.page}:{one.line}: nothing executes {one.text.splitlines()[0]}")
    return wrong + [f"{page}: EXEMPT has an unnecessary entry for {beginning}" for page, beginning, why in exempt if (page, beginning, why) not in needed]


def check() -> dict[str, list[str]]:
    """Check all pages for the style suite; return the problems by the name of the check."""
    tracked, _ = command(["git", "ls-files", "--", *(f":(glob){page}" for page in PAGES)], quiet=True)
    found = [one for page in tracked.split() for one in pages.commands(page, (REPOSITORY / page).read_text())]
    sources, _ = command(["git", "ls-files", "--", *(f":(glob){source}" for source in SOURCES)], quiet=True)
    calls: list[Call] = []
    reads: set[tuple[str, str]] = set()
    for source in sources.split():
        text = (REPOSITORY / source).read_text()
        is_python = source.endswith(".py")
        calls += python_calls(text) if is_python else rust_calls(text)
        reads |= python_reads(text) if is_python else rust_reads(text)
    return {"commands in documents are executed": unexecuted(found, calls, reads)}
