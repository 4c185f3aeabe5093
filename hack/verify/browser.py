"""Runs the tests of the web console in a real browser, on a cluster with Drydock installed.

The tests are in tests/console. They need software that is not part of the product: Chromium and TypeScript from Debian, and
the packages in tests/console/requirements.txt, which are installed in a virtual environment in the cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from embedded import cluster as clusters
from embedded import prerequisites
from embedded.errors import Failure
from embedded.layout import cache_root
from embedded.progress import Progress
from oci import binaries

from . import install
from .outcome import Outcome, of_unittest
from .runner import REPOSITORY
from .runner import run as command

TESTS = REPOSITORY / "tests" / "console"
REQUIREMENTS = TESTS / "requirements.txt"
PROGRAM = "kubectl-drydock"
# Chromium without a user interface. It needs a third of the CPU time of `chromium --headless`.
CHROMIUM = "chromium-headless-shell"
# The cargo profile of the tests, with which the console was built.
PROFILE = "dev"

# Timeout: three times the duration of the tests on a busy machine.
MOST_SECONDS = 1200
INSTALL_SECONDS = 600


def prepare(progress: Progress) -> Path:
    """Install the tests' requirements and build the console; return the path of the Python interpreter that has Playwright."""
    prerequisites.ensure(("browser",), progress)
    with progress.step(f"cargo build {PROGRAM}"):
        _, code = command(binaries.build_command([PROGRAM], PROFILE), quiet=True)
    if code != 0:
        raise Failure(f"{PROGRAM} cannot be built")
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache_root() / "programs" / f"browser-tests-{digest}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    with progress.step("installing packages for the browser tests"):
        for argv in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)],
        ):
            output, code = command(argv, quiet=True, most_seconds=INSTALL_SECONDS)
            if code != 0:
                raise Failure(f"{' '.join(argv[:4])} ended with exit code {code}", output)
    (folder / "complete").touch()
    return python


def is_wanted(word: str) -> bool:
    """Return whether a word selects any browser test, by the name of the test or of its file."""
    found = ((file.stem, file.read_text()) for file in TESTS.glob("test_*.py"))
    return any(word in f"{stem}.{test}" for stem, text in found for test in re.findall(r"\bdef (test_\w+)", text))


def run(name: str, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the selected browser tests on one cluster."""
    python = prepare(progress)
    made = clusters.load(name)
    chromium = shutil.which(CHROMIUM)
    if chromium is None:
        raise Failure(f"{CHROMIUM} is installed but not on the PATH")
    environment = {
        "DRYDOCK_CONSOLE": str(binaries.program(REPOSITORY, PROGRAM, PROFILE)),
        "DRYDOCK_TEST_CHROMIUM": chromium,
        "DRYDOCK_TEST_CONSOLE_MANIFESTS": str(install.console_overlay(made)),
        "DRYDOCK_TEST_KUBECTL": str(made.description["kubectl"]),
        "DRYDOCK_TEST_TSC": shutil.which("tsc") or "",
        "DRYDOCK_TEST_PICTURES": os.environ.get("DRYDOCK_TEST_PICTURES", ""),
        "KUBECONFIG": str(made.kubeconfig),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [str(python), "-m", "unittest", "discover", "-v", "-s", str(TESTS)]
    argv += ["-k", arguments.only] if arguments.only else []
    with progress.step(f"browser tests on {name}", announce=True):
        output, code = command(argv, environment, most_seconds=MOST_SECONDS, prefix=f"{name}: ", stamped=True, folder=TESTS)
    return of_unittest(output, code)
