"""What the audience sees, and how the show waits for things to happen."""

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
# Seconds between two reads of what is waited for. Each runs kubectl, which keeps a processor from the guests that boot.
POLL = 0.25
# What a guest prints when it has booted. Before, it does not obey its power button.
BOOTED = "drydock-guest ready"
# Everything that the scenes make, for a cluster that was kept after an earlier demonstration.
LEFT = ("vm/lasting", "vm/traveller", "vmi/once", "vmi/picky", "svc/lasting", "deployment/guarded", "pdb/guarded", "pvc/demo", "pv/demo")


class Stage:
    """Prints what is done, does it with kubectl and virtctl in plain sight, and waits with live progress."""

    def __init__(self, made: Cluster, progress: Progress) -> None:
        self.cluster = made
        # The image of the console has it too, so that it was built with the others.
        self.plugin_path = str(program(REPOSITORY, "kubectl-drydock", PROFILE))
        self.progress = progress
        self._achieved: list[str] = []

    @cached_property
    def _virtctl(self) -> str:
        """The path of virtctl, once it is built."""
        return build.virtctl(self.progress)

    def scene(self, title: str, text: str) -> None:
        """Begin a part of the show."""
        print(f"\n━━ {title}", flush=True)
        print(textwrap.fill(" ".join(text.split()), 96), flush=True)

    def kubectl(self, *arguments: str, input: str | None = None, quiet: bool = False, lines: int | None = None) -> str:
        """Run kubectl as the audience would and show what it prints."""
        print(f"\n$ kubectl {' '.join(arguments)}", flush=True)
        if input is not None:
            print(textwrap.indent(input.strip(), "  │ "), flush=True)
        output = self.cluster.kubectl(*arguments, input=input)
        if not quiet:
            shown = output.rstrip().splitlines()
            for line in shown[:lines]:
                print(f"  {line}")
            if lines is not None and len(shown) > lines:
                print(f"  ... and {len(shown) - lines} lines more")
            sys.stdout.flush()
        return output

    def virtctl(self, *arguments: str) -> None:
        """Run KubeVirt's command line as the audience would and show what it prints."""
        print(f"\n$ virtctl {' '.join(arguments)}", flush=True)
        argv = [self._virtctl, *arguments]
        done = subprocess.run(
            argv, env=self.cluster.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(textwrap.indent(done.stdout.rstrip(), "  "), flush=True)
        if done.returncode != 0:
            raise Failure(f"virtctl {arguments[0]} failed", done.stdout)

    def plugin(self, *arguments: str, codes: Sequence[int] = (0,)) -> None:
        """Run `kubectl drydock` as the audience would, and show what it prints; it ends with one of these exit codes."""
        print(f"\n$ kubectl drydock {' '.join(arguments)}", flush=True)
        # Its output is the terminal, if there is one: it draws on that.
        done = subprocess.run([self.plugin_path, *arguments], env=self.cluster.environment(), stdin=subprocess.DEVNULL, timeout=PATIENCE)
        if done.returncode not in codes:
            raise Failure(f"kubectl drydock {arguments[0]} ended with {done.returncode}")

    def console(self, guest: str, dialogue: Sequence[tuple[str, str]], done: str) -> None:
        """Log in to a guest by `virtctl console`: wait for each prompt and type the line that follows it."""
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
                            raise Failure(f"waited {PATIENCE} s in vain for {prompt!r} on the console of {guest}", received)
                        if index == 0 and now - typed > 2:
                            # A guest shows its prompt again when Enter is pressed.
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
                # Ctrl-] leaves.
                os.write(ours, b"\x1d")
                running.wait(PATIENCE)
            finally:
                running.kill()
                os.close(ours)
        print(flush=True)
        self.note(f"{done} ({time.monotonic() - begun:.1f} s)")

    def clear(self) -> None:
        """Remove what an earlier demonstration left."""
        nodes = [node.name for node in self.cluster.nodes]
        self.cluster.kubectl("delete", "nodemaintenances", *nodes, "--ignore-not-found")
        self.cluster.kubectl("uncordon", *nodes)
        self.cluster.kubectl("delete", *LEFT, "--ignore-not-found", "--timeout=60s")
        # virtctl lets the API server name its migrations.
        self.cluster.kubectl("delete", "vmim", "-l", "kubevirt.io/vmi-name=traveller", "--timeout=60s")

    @contextmanager
    def only_on(self, node: str) -> Iterator[None]:
        """Have pods that are created meanwhile start on this node, so that later scenes find them there."""
        others = [other.name for other in self.cluster.nodes if other.name != node]
        self.cluster.kubectl("cordon", *others)
        try:
            yield
        finally:
            self.cluster.kubectl("uncordon", *others)

    def pod(self, name: str) -> str:
        """The name of the pod in which an instance runs; empty if there is none."""
        pods = self.read("pods", "-l", f"vm.kubevirt.io/name={name}")["items"]
        alive = [pod["metadata"] for pod in pods if pod["status"].get("phase") == "Running"]  # type: ignore[attr-defined]
        return str(max(alive, key=lambda metadata: metadata["creationTimestamp"])["name"]) if alive else ""

    def log(self, pod: str) -> list[str]:
        """The lines of a pod's log, with their times; none without a pod."""
        return self.cluster.kubectl("logs", pod, "--timestamps").splitlines() if pod else []

    def read(self, *arguments: str) -> dict[str, object]:
        """Return an object as the API server has it, without showing the request."""
        return json.loads(self.cluster.kubectl("get", *arguments, "-o", "json"))

    def labels(self, node: str) -> dict[str, str]:
        """The labels of a node."""
        return self.read("node", node)["metadata"]["labels"]  # type: ignore[index]

    def until(self, what: str, holds: Callable[[], bool], done: str) -> None:
        """Wait with a live line until something holds, and note it for the summary."""
        begun = time.monotonic()
        while not holds():
            waited = time.monotonic() - begun
            if waited > PATIENCE:
                raise Failure(f"waited {waited:.0f} s in vain for {what}")
            if sys.stdout.isatty():
                print(f"\r  waiting for {what} ... {waited:4.1f} s", end="", flush=True)
            time.sleep(POLL)
        waited = time.monotonic() - begun
        clear = "\r" if sys.stdout.isatty() else ""
        print(f"{clear}  ✔ {what}: {waited:.1f} s{' ' * 30}".rstrip(), flush=True)
        self._achieved.append(f"{done} ({waited:.1f} s)")

    def follow(self, pod: str, words: str, done: str, *, quiet: bool = False) -> None:
        """Follow a guest's console, and show it unless quiet, until it has printed `words`; note it for the summary."""
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
                    raise Failure(f"waited {time.monotonic() - begun:.0f} s in vain for {pod} to print {words!r}")
            finally:
                impatience.cancel()
                following.kill()
        self.note(f"{done} ({time.monotonic() - begun:.1f} s)")

    def note(self, text: str) -> None:
        """Keep a fact for the summary."""
        print(f"  ✔ {text}", flush=True)
        self._achieved.append(text)

    def summary(self) -> None:
        """What was shown."""
        print("\n━━ Summary")
        for text in self._achieved:
            print(f"  ✔ {text}")
        print(f"  in {self.progress.elapsed():.0f} s all together", flush=True)
