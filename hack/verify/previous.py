"""Tests parts of this version together with parts of the previous release: `hack/test --previous-release`.

    git archive COMMIT ──▶ <cache>/previous/COMMIT/source ──its own hack/images──▶ the cluster's registry
                                      │ its DaemonSet and Deployment, with these images
                                      ▼
                      tests/tests/migration_rollout.rs, `mixed_versions_…`

The first run builds the previous release, which takes minutes. Therefore this is not one of the suites that always run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from embedded import cluster as clusters
from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .install import install, overlay
from .outcome import Outcome, of_libtest
from .runner import REPOSITORY
from .runner import run as command
from .rust import cluster_tests

# The commit of the previous release. During an update, parts of a cluster may be of that version.
COMMIT = "a233b0678bd80e9e12902927295ed5a363fa40a2"
NAME = "previous"
FILE = "migration_rollout"
# The prefix of the names of these tests.
TESTS = "mixed_versions_"
RESULT = REPOSITORY / "tests" / "previous-release.md"

# Timeout of a command: more than a cold build of the whole previous release takes.
MOST_SECONDS = 3600

# Unused builds of other releases are deleted after this number of days, since each takes gigabytes.
UNUSED_DAYS = 7

HEAD = """# Components of two releases in one cluster

`hack/test --previous-release` writes this page. It moves guests on a cluster in which some components are of the previous
release: the agent of one node, then the agents of both nodes, and the controllers.

"""


def folder_of(commit: str) -> Path:
    """Return the folder that holds all files of a release."""
    return Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock")) / "previous" / commit


def source(commit: str, progress: Progress, repository: Path = REPOSITORY) -> Path:
    """Return the folder with the source of a release; extract it from the git history on first use."""
    tree = folder_of(commit) / "source"
    if tree.exists():
        # Record the time of the last use.
        os.utime(tree.parent)
        return tree
    _, code = command(["git", "cat-file", "-e", f"{commit}^{{commit}}"], quiet=True, folder=repository)
    if code != 0:
        raise Failure(
            f"the previous release, commit {commit}, is not in the history of this clone; "
            "complete a shallow clone with `git fetch --unshallow`"
        )
    _sweep(tree.parent)
    partial = tree.with_name("source.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with progress.step(f"extracting the source of {commit[:7]}"):
        archive = subprocess.run(["git", "archive", commit], cwd=repository, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(partial)], input=archive.stdout, check=True)
    partial.rename(tree)
    return tree


def _sweep(folder: Path) -> None:
    """Remove other releases that have not been used for `UNUSED_DAYS`: each has its own build of everything."""
    oldest = time.time() - UNUSED_DAYS * 86400
    for other in folder.parent.glob("*"):
        if other != folder and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)


def images(tree: Path, made: Cluster, progress: Progress) -> dict[str, str]:
    """Build the images of a release with its own scripts, push them, and return their digests by name."""
    folder = tree.parent
    environment = {"DRYDOCK_CACHE": str(folder / "cache"), "CARGO_TARGET_DIR": str(folder / "target")}
    names = ("agent", "controller")
    argv = [str(tree / "hack" / "images"), *names, "--debug", "--push", made.registry]
    with progress.step(f"building the images of {folder.name[:7]}", announce=True):
        _, code = command(argv, environment, most_seconds=MOST_SECONDS, folder=tree)
    if code != 0:
        raise Failure("the images of the previous release could not be built; see above")
    digests = json.loads((folder / "cache" / "images" / "images.json").read_text())
    return {name: digests[f"localhost/drydock/{name}:dev"] for name in names}


def workload(folder: Path, manifest: Path, digests: dict[str, str], strategy: dict[str, object] | None = None) -> Path:
    """Write a folder for `kubectl apply -k` with one workload of a release, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "workload.yaml").write_text(manifest.read_text())
    fields = REPOSITORY / "deploy" / "image-fields.yaml"
    (folder / fields.name).write_text(fields.read_text())
    kustomization: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["workload.yaml"],
        "configurations": [fields.name],
        "images": [{"name": f"localhost/drydock/{name}", "digest": digest} for name, digest in sorted(digests.items())],
    }
    if strategy is not None:
        change = [{"op": "replace", "path": "/spec/updateStrategy", "value": strategy}]
        kustomization["patches"] = [{"target": {"kind": "DaemonSet"}, "patch": json.dumps(change)}]
    # JSON is valid YAML.
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


def run(arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Migrate guests on a separate cluster that runs parts of both versions."""
    tree = source(COMMIT, progress)
    with clusters.brought_up(NAME, progress, keep=arguments.keep) as made:
        earlier = images(tree, made, progress)
        # Push these images after those of the previous release, so that names without a digest refer to this version.
        install(made, progress, kind="--debug")
        this = overlay(made)
        images_of_this = json.loads((this / "kustomization.yaml").read_text())["images"]
        digests = {image["name"].rpartition("/")[2]: image["digest"] for image in images_of_this}
        agents = workload(
            this.with_name("previous-agents"),
            tree / "deploy" / "agent" / "daemonset.yaml",
            {"agent": earlier["agent"]},
            # The test updates one node at a time.
            {"type": "OnDelete"},
        )
        controllers = workload(
            this.with_name("previous-controllers"),
            tree / "deploy" / "controller" / "deployment.yaml",
            {"controller": earlier["controller"], "launcher": digests["launcher"]},
        )
        tests = cluster_tests(progress)
        argv = tests.argv(FILE, [name for name in tests.tests[FILE] if name.startswith(TESTS)])
        environment = {
            "DRYDOCK_TEST_CLUSTER": NAME,
            "DRYDOCK_PREVIOUS_AGENTS": str(agents),
            "DRYDOCK_PREVIOUS_CONTROLLERS": str(controllers),
            "DRYDOCK_THIS_RELEASE": str(this),
            "RUST_BACKTRACE": "0",
        }
        output, code = command(argv, environment, most_seconds=MOST_SECONDS, folder=REPOSITORY / "tests")
        RESULT.write_text(HEAD + table(output))
        progress.note(f"wrote {RESULT.relative_to(REPOSITORY)}")
    return of_libtest(output, code)


def table(output: str) -> str:
    """Return the Markdown table with the result of each test in libtest's output."""
    lines = [f"The previous release is commit {COMMIT[:7]}.", "", "| test | result |", "|---|---|"]
    for line in output.splitlines():
        words = line.split()
        name = words[1].rpartition("::")[2] if len(words) >= 4 else ""
        if words[:1] == ["test"] and name.startswith(TESTS) and words[2] == "...":
            lines.append(f"| `{name}` | {'passed' if words[3] == 'ok' else '**failed**'} |")
    return "\n".join(lines) + "\n"
