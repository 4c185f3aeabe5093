"""Output of the demonstration: commands with their output, waiting with progress, and the summary."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from embedded import build
from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress
from oci.binaries import program
from verify.runner import REPOSITORY

from .preparation import PROFILE

PATIENCE = 90
# Polling interval in seconds. Each poll runs kubectl, which takes processor time from booting guests.
POLL = 0.25
# A guest prints this text when it has booted. Before that, the guest does not react to its power button.
BOOTED = "drydock-guest ready"
# All objects that the scenes create, to delete them in a cluster that was kept after an earlier demonstration.
LEFT = ("vm/lasting", "vm/traveller", "vmi/once", "vmi/picky", "svc/lasting", "deployment/guarded", "pdb/guarded", "pvc/demo", "pv/demo")


class Stage:
    """The demonstration's output and commands: prints and runs kubectl and virtctl, and waits with live progress."""

    def __init__(self, made: Cluster, progress: Progress) -> None:
        self.cluster = made
        # The plugin is also in the image of the console, so it was built with the images.
        self.plugin_path = str(program(REPOSITORY, "kubectl-drydock", PROFILE))
        self.progress = progress
        self._achieved: list[str] = []

    @cached_property
    def _virtctl(self) -> str:
        """Return the path of virtctl; build it if necessary."""
        return build.virtctl(self.progress)

    def scene(self, title: str, text: str) -> None:
        """Print the title and the text of a new scene."""
        print(f"\n━━ {title}", flush=True)
        print(textwrap.fill(" ".join(text.split()), 96), flush=True)

    def kubectl(self, *arguments: str, input: str | None = None, quiet: bool = False, lines: int | None = None) -> str:
        """Print and run a kubectl command, and print its output unless quiet, at most `lines` lines of it."""
        print(f"\n$ kubectl {' '.join(arguments)}", flush=True)
        if input is not None:
            print(textwrap.indent(input.strip(), "  │ "), flush=True)
        output = self.cluster.kubectl(*arguments, input=input)
        if not quiet:
            shown = output.rstrip().splitlines()
            for line in shown[:lines]:
                print(f"  {line}")
            if lines is not None and len(shown) > lines:
                print(f"  ... and {len(shown) - lines} more lines")
            sys.stdout.flush()
        return output

    def virtctl(self, *arguments: str) -> None:
        """Print and run a virtctl command, and print its output."""
        print(f"\n$ virtctl {' '.join(arguments)}", flush=True)
        argv = [self._virtctl, *arguments]
        done = subprocess.run(
            argv, env=self.cluster.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(textwrap.indent(done.stdout.rstrip(), "  "), flush=True)
        if done.returncode != 0:
            raise Failure(f"virtctl {arguments[0]} failed", done.stdout)

    def plugin(self, *arguments: str, codes: Sequence[int] = (0,)) -> None:
        """Print and run a `kubectl drydock` command; fail if its exit code is not one of `codes`."""
        print(f"\n$ kubectl drydock {' '.join(arguments)}", flush=True)
        # The plugin inherits standard output, because it draws on a terminal if there is one.
        done = subprocess.run([self.plugin_path, *arguments], env=self.cluster.environment(), stdin=subprocess.DEVNULL, timeout=PATIENCE)
        if done.returncode not in codes:
            raise Failure(f"kubectl drydock {arguments[0]} failed with exit code {done.returncode}")

    def console(self, guest: str, dialogue: Sequence[tuple[str, str]], done: str) -> None:
        """Run a dialogue on a guest's console with `virtctl console`: wait for each prompt, then type its line."""
        begun = time.monotonic()
        print(f"\n$ virtctl console {guest}", flush=True)
        ours, theirs = pty.openpty()
        argv = [self._virtctl, "console", guest]
        with subprocess.Popen(argv, env=self.cluster.environment(), stdin=theirs, stdout=theirs, stderr=theirs) as running:
            os.close(theirs)
            try:
                received = ""
                for index, (prompt, line) in enumerate(dialogue):
                    typed = 0.0
                    while prompt not in received:
                        now = time.monotonic()
                        if now - begun > PATIENCE:
                            raise Failure(f"timeout after {PATIENCE} s: no {prompt!r} on the console of {guest}", received)
                        if index == 0 and now - typed > 2:
                            # Enter makes the guest print its prompt again.
                            os.write(ours, b"\n")
                            typed = now
                        if select.select([ours], [], [], 0.2)[0]:
                            piece = os.read(ours, 4096).decode(errors="replace").replace("\r", "")
                            sys.stdout.write(piece.replace("\n", "\n  "))
                            sys.stdout.flush()
                            received += piece
                    received = received.split(prompt, 1)[1]
                    if line:
                        os.write(ours, f"{line}\n".encode())
                # Ctrl-] ends virtctl.
                os.write(ours, b"\x1d")
                running.wait(PATIENCE)
            finally:
                running.kill()
                os.close(ours)
        print(flush=True)
        self.note(f"{done} ({time.monotonic() - begun:.1f} s)")

    def clear(self) -> None:
        """Delete the objects of an earlier demonstration, and uncordon the nodes."""
        nodes = [node.name for node in self.cluster.nodes]
        self.cluster.kubectl("delete", "nodemaintenances", *nodes, "--ignore-not-found")
        self.cluster.kubectl("uncordon", *nodes)
        self.cluster.kubectl("delete", *LEFT, "--ignore-not-found", "--timeout=60s")
        # The API server generates the names of virtctl's migrations.
        self.cluster.kubectl("delete", "vmim", "-l", "kubevirt.io/vmi-name=traveller", "--timeout=60s")

    @contextmanager
    def only_on(self, node: str) -> Iterator[None]:
        """Cordon the other nodes, so that pods that are created in this context start on this node."""
        others = [other.name for other in self.cluster.nodes if other.name != node]
        self.cluster.kubectl("cordon", *others)
        try:
            yield
        finally:
            self.cluster.kubectl("uncordon", *others)

    def pod(self, name: str) -> str:
        """Return the name of the newest running pod of an instance; empty if there is none."""
        pods = self.read("pods", "-l", f"vm.kubevirt.io/name={name}")["items"]
        alive = [pod["metadata"] for pod in pods if pod["status"].get("phase") == "Running"]  # type: ignore[attr-defined]
        return str(max(alive, key=lambda metadata: metadata["creationTimestamp"])["name"]) if alive else ""

    def log(self, pod: str) -> list[str]:
        """Return the lines of a pod's log with timestamps; an empty list if the name is empty."""
        return self.cluster.kubectl("logs", pod, "--timestamps").splitlines() if pod else []

    def read(self, *arguments: str) -> dict[str, object]:
        """Return the parsed output of `kubectl get -o json`, without printing the command."""
        return json.loads(self.cluster.kubectl("get", *arguments, "-o", "json"))

    def labels(self, node: str) -> dict[str, str]:
        """Return the labels of a node."""
        return self.read("node", node)["metadata"]["labels"]  # type: ignore[index]

    def until(self, what: str, holds: Callable[[], bool], done: str) -> None:
        """Wait until `holds` returns true, with a live line; add `done` to the summary. Fail after `PATIENCE` seconds."""
        begun = time.monotonic()
        while not holds():
            waited = time.monotonic() - begun
            if waited > PATIENCE:
                raise Failure(f"timeout after waiting {waited:.0f} s for {what}")
            if sys.stdout.isatty():
                print(f"\r  waiting for {what} ... {waited:4.1f} s", end="", flush=True)
            time.sleep(POLL)
        waited = time.monotonic() - begun
        clear = "\r" if sys.stdout.isatty() else ""
        print(f"{clear}  ✔ {what}: {waited:.1f} s{' ' * 30}".rstrip(), flush=True)
        self._achieved.append(f"{done} ({waited:.1f} s)")

    def follow(self, pod: str, words: str, done: str, *, quiet: bool = False) -> None:
        """Follow a guest's output, and print it unless quiet, until a line contains `words`; add `done` to the summary."""
        begun = time.monotonic()
        if not quiet:
            print(f"\n$ kubectl logs -f {pod} | grep ^guest", flush=True)
        argv = [str(self.cluster.description["kubectl"]), "logs", "--follow", pod]
        with subprocess.Popen(argv, env=self.cluster.environment(), stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            impatience = threading.Timer(PATIENCE, following.kill)
            impatience.start()
            try:
                for line in following.stdout:
                    if not line.startswith("guest: "):
                        continue
                    if not quiet:
                        print(f"  {line.rstrip()[:120]}", flush=True)
                    if words in line:
                        break
                else:
                    raise Failure(f"timeout after {time.monotonic() - begun:.0f} s: {pod} has not printed {words!r}")
            finally:
                impatience.cancel()
                following.kill()
        self.note(f"{done} ({time.monotonic() - begun:.1f} s)")

    def note(self, text: str) -> None:
        """Print a result, and add it to the summary."""
        print(f"  ✔ {text}", flush=True)
        self._achieved.append(text)

    def summary(self) -> None:
        """Print the results of all scenes."""
        print("\n━━ Summary")
        for text in self._achieved:
            print(f"  ✔ {text}")
        print(f"  total time: {self.progress.elapsed():.0f} s", flush=True)
