"""Report which manifests in a folder a cluster with Drydock admits, by a server-side dry run.

Reads all .yaml, .yml and .json files. Prints each refusal, then the number of refusals for each field, then the percentage of
KubeVirt objects that are admitted. Creates no objects except the namespaces that manifests name.

`drydock-controller admit FOLDER` does nearly the same without a cluster.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from embedded import cluster as clusters
from embedded import interruption
from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .install import install

NAME = "corpus"
ENDINGS = (".yaml", ".yml", ".json")
KINDS = (
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceReplicaSet",
    "VirtualMachineInstanceMigration",
)
ADMITTED = re.compile(rf"^(?:{'|'.join(kind.lower() for kind in KINDS)})\.kubevirt\.io/\S+ created")
# kubectl prints the kind and name of an object only if the API server itself has refused it.
REFUSED = re.compile(rf'^The (?:request|(?:{"|".join(KINDS)}) "[^"]*") is invalid:\s*(.*)$')
CAUSE = re.compile(r"^(?:\* )?((?:spec|metadata)\b[^\s:]*): ")
INDEX = re.compile(r"\[\d+\]")
NO_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')


@dataclass
class Report:
    """The numbers of admitted and refused objects."""

    admitted: int = 0
    refused: int = 0
    by_field: Counter[str] = field(default_factory=Counter)

    def add(self, output: str, errors: str) -> None:
        """Count the results in kubectl's output for one file."""
        self.admitted += sum(1 for line in output.splitlines() if ADMITTED.match(line))
        fields: set[str] | None = None
        for line in errors.splitlines():
            refused = REFUSED.match(line)
            if refused:
                self._count(fields)
                self.refused += 1
                fields, line = set(), refused[1]
            cause = CAUSE.match(line)
            if fields is not None and cause:
                fields.add(INDEX.sub("[]", cause[1]))
        self._count(fields)

    def _count(self, fields: set[str] | None) -> None:
        self.by_field.update(fields or ())

    def lines(self) -> list[str]:
        """Return the lines of the summary."""
        counted = sorted(self.by_field.items(), key=lambda one: (-one[1], one[0]))
        lines = [f"{count:6}  {name}" for name, count in counted]
        considered = self.admitted + self.refused
        share = 100 * self.admitted // considered if considered else 0
        lines.append(f"{considered} objects: {self.admitted} admitted ({share} %), {self.refused} refused")
        return lines


def files(folder: Path) -> list[Path]:
    """Return the manifests in a folder and its subfolders, or `folder` itself if it is a file."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise Failure(f"{folder} is neither a file nor a folder")
    return sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())


def dry_run(made: Cluster, path: Path) -> subprocess.CompletedProcess[str]:
    """Create the objects of a file in a server-side dry run."""
    argv = [made.description["kubectl"], "create", "--dry-run=server", "-f", str(path)]
    return subprocess.run(argv, env=made.environment(), capture_output=True, text=True, timeout=120)


def judge(made: Cluster, paths: list[Path], progress: Progress) -> Report:
    """Dry-run each file, create the namespaces that it lacks, and return the report."""
    report = Report()
    for path in paths:
        done = dry_run(made, path)
        missing = set(NO_NAMESPACE.findall(done.stderr))
        for namespace in missing:
            made.kubectl("create", "namespace", namespace)
        if missing:
            done = dry_run(made, path)
        report.add(done.stdout, done.stderr)
        if done.stderr.strip():
            progress.note(f"{path}:\n{done.stderr.rstrip()}")
    return report


def main(argv: list[str]) -> int:
    """Check a folder on a temporary cluster or on an existing one."""
    parser = argparse.ArgumentParser(
        prog="hack/corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--name", help="use a cluster created by `hack/up --install` (default: a temporary cluster)")
    arguments = parser.parse_args(argv)
    interruption.heed_termination()
    progress = Progress()
    try:
        paths = files(arguments.folder)
        name, nodes = (arguments.name, None) if arguments.name else (NAME, 1)
        with clusters.brought_up(name, progress, nodes, keep=bool(arguments.name)) as made:
            if not arguments.name:
                install(made, progress, kind="--debug")
            report = judge(made, paths, progress)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return interruption.EXIT_CODE
    print("\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
