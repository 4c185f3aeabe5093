"""Cost of streams through the API, compared with socat on the same sockets of the guest's pod.

    this process ─TLS─▶ API server ─TLS─▶ controller ─TLS─▶ agent ─unix─▶ console or display
    this process ─pipe─▶ socat ─unix──────────────────────────────────▶ console or display

Measurements of both paths alternate. The guest is emulated, so its echo is slow; the figure is the difference.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .api import Api
from .measurement import SAMPLES, Measurement, median
from .guests import NAMESPACE, Guest, instance, instances, run_folder
from .pods import Memory, memory, processes, the_process
from .websocket import Stream

NAME = "streams"
CONSOLE, DISPLAY = "console-client.sock", "vnc.sock"
# Numbers of echoes and of display updates in one sample.
ECHOES = 40
UPDATES = 20
# Bytes per pixel: QEMU's default, which a client could change.
PIXEL = 4
# Number of streams that are open at the same time; below the limit per user and node.
STREAMS = 20
# Seconds until a process has allocated the memory of an open stream and freed the memory that only opening it needed.
SETTLE = 5

# Budgets: an echo takes at most 5 ms longer, and the display has at least 0.8 of the throughput.
MORE = 5
SLOWER = 1 / 0.8


class Carrier(Protocol):
    """A connection to a socket of the guest."""

    def send(self, data: bytes) -> None:
        """Send bytes."""

    def receive(self) -> bytes:
        """Return at least one received byte; wait until there is one."""

    def exactly(self, count: int) -> bytes:
        """Receive and return exactly `count` bytes."""

    def close(self) -> None:
        """Close the connection."""


class Socat:
    """A connection through a socat process: the baseline."""

    def __init__(self, path: Path) -> None:
        # The path may be too long for a socket address; one through the folder's file descriptor is not.
        self._folder = os.open(path.parent, os.O_PATH)
        target = f"UNIX-CONNECT:/proc/{os.getpid()}/fd/{self._folder}/{path.name}"
        self._process = subprocess.Popen(["socat", "-b", "65536", "-", target], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def receive(self) -> bytes:
        """Return at least one received byte; wait until there is one."""
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 65536)
        if not data:
            raise Failure("socat has ended")
        return data

    def exactly(self, count: int) -> bytes:
        """Receive and return exactly `count` bytes."""
        parts, left = [], count
        while left:
            assert self._process.stdout is not None
            data = os.read(self._process.stdout.fileno(), min(left, 65536))
            if not data:
                raise Failure("socat has ended")
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()
        os.close(self._folder)


def manifest(node: str) -> dict[str, Any]:
    """Return the manifest of a guest that has a display and serves HTTP."""
    made = instance(NAME, node)
    made["spec"]["domain"]["devices"]["autoattachGraphicsDevice"] = True
    data = "#cloud-config\npassword: fedora\nchpasswd: { expire: False }\ndrydock: { http: 80 }\n"
    made["spec"]["volumes"].append({"name": "init", "cloudInitNoCloud": {"userData": data}})
    return made


def measure(made: Cluster, api: Api, progress: Progress, samples: int = SAMPLES) -> Iterator[Measurement]:
    """Measure the echo time of a console, the update time of a display, and the memory of port-forwards."""
    node = made.nodes[0].name
    with instances(api) as watch:
        guest = Guest(api, watch, manifest(node))
        guest.ready()
        pod = guest.pod()
        _until_booted(made, pod)
        path = f"/apis/subresources.kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/{NAME}"
        folder = run_folder(made, pod)
        carriers = _carriers(api, path, folder)
        yield from _console(carriers("console", CONSOLE), samples, progress)
        yield from _display(carriers("vnc", DISPLAY), samples, progress)
        yield from _memory(made, api, f"{path}/portforward/80/tcp", node, progress)


def _until_booted(made: Cluster, pod: dict[str, Any]) -> None:
    deadline = time.monotonic() + 90
    while "drydock-guest ready" not in made.kubectl("logs", pod["metadata"]["name"], "-n", NAMESPACE, check=False):
        if time.monotonic() > deadline:
            raise Failure(f"{NAME} has not booted")
        time.sleep(0.5)


Carriers = dict[str, Callable[[], contextlib.AbstractContextManager[Carrier]]]


def _carriers(api: Api, path: str, folder: Path) -> Callable[[str, str], Carriers]:
    def both(subresource: str, socket: str) -> Carriers:
        return {
            "api": lambda: contextlib.closing(Stream(api, f"{path}/{subresource}")),
            "socat": lambda: contextlib.closing(Socat(folder / socket)),
        }

    return both


def _console(carriers: Carriers, samples: int, progress: Progress) -> Iterator[Measurement]:
    taken: dict[str, list[float]] = {name: [] for name in carriers}
    for turn in range(samples):
        for name, carrier in carriers.items():
            with carrier() as console:
                taken[name].append(median([_echo(console, index) for index in range(ECHOES)], ECHOES))
                # Ctrl-U deletes the typed line.
                console.send(b"\x15")
        progress.note(f"echo {turn + 1} of {samples}: " + ", ".join(f"{name} {ms[-1]:.2f} ms" for name, ms in taken.items()))
    through, raw = median(taken["api"], samples), median(taken["socat"], samples)
    yield Measurement("streams.console-echo vs socat", through, "ms", raw, None, least=min(taken["api"]))
    yield Measurement("streams.console-echo more than socat", through - raw, "ms", None, MORE)


def _echo(console: Carrier, index: int) -> float:
    """Return the milliseconds until the guest's terminal echoes a letter."""
    letter = bytes([ord("a") + index % 26])
    begun = time.monotonic()
    console.send(letter)
    while letter not in console.receive():
        pass
    return (time.monotonic() - begun) * 1000


def _display(carriers: Carriers, samples: int, progress: Progress) -> Iterator[Measurement]:
    taken: dict[str, list[float]] = {name: [] for name in carriers}
    size = 0
    for turn in range(samples):
        for name, carrier in carriers.items():
            with carrier() as display:
                width, height = _greet(display)
                size = width * height * PIXEL
                _update(display, width, height)
                begun = time.monotonic()
                for _ in range(UPDATES):
                    _update(display, width, height)
                taken[name].append((time.monotonic() - begun) / UPDATES * 1000)
        progress.note(f"update {turn + 1} of {samples}: " + ", ".join(f"{name} {ms[-1]:.1f} ms" for name, ms in taken.items()))
    through, raw = median(taken["api"], samples), median(taken["socat"], samples)
    name = f"streams.display-update of {size / (1 << 20):.1f} MiB vs socat"
    yield Measurement(name, through, "ms", raw, SLOWER, relative=True, least=min(taken["api"]))


def _greet(display: Carrier) -> tuple[int, int]:
    """Perform the handshake of RFB 3.8 (RFC 6143) without a password; return the display's width and height."""
    version = display.exactly(12)
    display.send(version)
    (count,) = display.exactly(1)
    display.exactly(count)
    display.send(b"\x01")
    if display.exactly(4) != bytes(4):
        raise Failure("the display requires a password")
    display.send(b"\x01")
    start = display.exactly(24)
    display.exactly(struct.unpack(">I", start[20:])[0])
    width, height = struct.unpack(">HH", start[:4])
    return width, height


def _update(display: Carrier, width: int, height: int) -> None:
    """Request an update of the whole screen and read it."""
    display.send(struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
    left = width * height
    while left > 0:
        kind, _, count = struct.unpack(">BBH", display.exactly(4))
        if kind != 0:
            raise Failure(f"received message {kind} instead of a display update")
        for _ in range(count):
            _, _, wide, high, encoding = struct.unpack(">HHHHi", display.exactly(12))
            if encoding != 0:
                raise Failure(f"received encoding {encoding}, which was not requested")
            display.exactly(wide * high * PIXEL)
            left -= wide * high


def _memory(made: Cluster, api: Api, path: str, node: str, progress: Progress) -> Iterator[Measurement]:
    """Measure the memory of each open stream, in the agent and summed over all controllers."""
    agent = the_process(made, node, "drydock-agent", "run")
    controllers = [(other.name, pid) for other in made.nodes for pid in processes(made, other.name, "drydock-controller")]

    def anonymous() -> tuple[float, float]:
        of_controllers: list[Memory] = [memory(made, place, pid) for place, pid in controllers]
        return memory(made, node, agent).anonymous, sum(one.anonymous for one in of_controllers)

    with contextlib.ExitStack() as opened:
        # The first stream allocates the memory that all of them share.
        opened.enter_context(contextlib.closing(Stream(api, path)))
        time.sleep(SETTLE)
        before = anonymous()
        for _ in range(STREAMS):
            opened.enter_context(contextlib.closing(Stream(api, path)))
        time.sleep(SETTLE)
        after = anonymous()
    progress.note(f"memory of {STREAMS} streams: agent {before[0]:.2f} to {after[0]:.2f}, controllers {before[1]:.2f} to {after[1]:.2f} MiB")
    for who, index in (("agent", 0), ("controllers", 1)):
        each = (after[index] - before[index]) * 1024 / STREAMS
        yield Measurement(f"streams.memory of an open port-forward in the {who}", each, "KiB", None, 256)
