"""Throughput, CPU time and memory of the tunnel, compared with socat with and without TLS.

    this process ─unix─▶ tunnel or socat ─TCP on the loopback─▶ tunnel or socat ─unix─▶ this process

On a single machine the processors limit the throughput, not a network, so that the full cost of encryption is visible.
"""

from __future__ import annotations

import contextlib
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress
from oci.binaries import target_folder
from verify.runner import REPOSITORY

from . import socat
from .api import PATIENCE, Api
from .measurement import SAMPLES, Measurement, median
from .relay import connect, listen
from .tunnel_sessions import session

GIB = 1 << 30
SIZE = GIB
PIECE = 1 << 20
STREAMS = 4
# Budget: 0.9 of socat's throughput.
SLOWER = 1.11
# Budget of each side in MiB: the idle process, and for each stream two buffers of 64 KiB per direction and the same in TLS.
MEMORY = 8


@dataclass(frozen=True)
class Carrier:
    """Two processes that forward connections from one socket to another."""

    entrance: Path
    exit: socket.socket
    pids: tuple[int, int]


Carriers = Callable[[Path], contextlib.AbstractContextManager[Carrier]]


def measure(made: Cluster, api: Api, progress: Progress, samples: int = SAMPLES) -> Iterator[Measurement]:
    """Measure the tunnel, socat with TLS and socat without it, alternately."""
    program = target_folder(REPOSITORY) / "release" / "drydock-agent"
    if not program.exists():
        raise Failure(f"{program} does not exist; hack/images builds it")
    carriers: dict[str, Carriers] = {
        "tunnel": lambda folder: _tunnel(program, folder),
        "socat TLS": _socat_tls,
        "socat TCP": _socat_tcp,
    }
    seconds: dict[str, list[float]] = {name: [] for name in carriers}
    spent: dict[str, list[float]] = {name: [] for name in carriers}
    for turn in range(samples):
        for name, carrier in carriers.items():
            with tempfile.TemporaryDirectory(prefix="drydock-bench-") as scratch, carrier(Path(scratch)) as carrying:
                before = sum(map(_processor_seconds, carrying.pids))
                seconds[name].append(push(carrying, 1, SIZE) * GIB / SIZE)
                spent[name].append((sum(map(_processor_seconds, carrying.pids)) - before) * GIB / SIZE)
        progress.note(
            f"throughput {turn + 1} of {samples}, seconds per GiB (processor seconds): "
            + ", ".join(f"{name} {seconds[name][-1]:.2f} ({spent[name][-1]:.2f})" for name in carriers)
        )
    for other, budget in (("socat TLS", SLOWER), ("socat TCP", None)):
        for what, of in (("seconds-per-GiB", seconds), ("processor-seconds-per-GiB", spent)):
            ours, theirs = of["tunnel"], median(of[other], samples)
            yield Measurement(f"tunnel.{what} vs {other}", median(ours, samples), "s", theirs, budget, budget is not None, min(ours))
    yield from _memory(program, samples, progress)


def _memory(program: Path, samples: int, progress: Progress) -> Iterator[Measurement]:
    idle, busy = [], []
    for _ in range(samples):
        with tempfile.TemporaryDirectory(prefix="drydock-bench-") as scratch, _tunnel(program, Path(scratch)) as carrying:
            idle.append(max(map(_anonymous, carrying.pids)))
            seen: list[float] = []
            push(carrying, STREAMS, SIZE // STREAMS, lambda: seen.append(max(map(_anonymous, carrying.pids))))
            busy.append(max(seen))
    progress.note(f"RssAnon of a tunnel with an idle session: {median(idle, samples):.1f} MiB")
    yield Measurement(f"tunnel.RssAnon-with-{STREAMS}-streams", median(busy, samples), "MiB", None, MEMORY, least=min(busy))


def push(carrying: Carrier, streams: int, size: int, inspect: Callable[[], None] | None = None) -> float:
    """Send `size` bytes through each of several streams; return the seconds until the last byte has arrived.

    `inspect` is called several times while all streams are stalled because their ends are not read, and then while data flows.
    """
    readable = threading.Event()
    ended = threading.Barrier(streams + 1, timeout=PATIENCE)
    counts: list[int] = []
    senders: list[threading.Thread] = []

    def drain(connection: socket.socket) -> None:
        buffer, count = bytearray(PIECE), 0
        readable.wait()
        with connection:
            while count < size and (length := connection.recv_into(buffer)):
                count += length
        counts.append(count)
        ended.wait()

    def accept() -> None:
        for _ in range(streams):
            threading.Thread(target=drain, args=(carrying.exit.accept()[0],), daemon=True).start()

    def send(connection: socket.socket) -> None:
        piece = bytes(PIECE)
        for _ in range(size // PIECE):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)

    if inspect is None:
        readable.set()
    threading.Thread(target=accept, daemon=True).start()
    begun = time.monotonic()
    with contextlib.ExitStack() as open_:
        for _ in range(streams):
            connection = open_.enter_context(connect(carrying.entrance))
            senders.append(threading.Thread(target=send, args=(connection,), daemon=True))
            senders[-1].start()
        if inspect is not None:
            for stalled in (True, False):
                for _ in range(10):
                    time.sleep(0.05)
                    inspect()
                if stalled:
                    readable.set()
        try:
            ended.wait()
        except threading.BrokenBarrierError as error:
            raise Failure(f"{size} bytes did not arrive on each of {streams} streams within {PATIENCE} s") from error
        lasted = time.monotonic() - begun
        for sender in senders:
            sender.join()
    if counts != [size] * streams:
        raise Failure(f"of {streams} × {size} bytes, {counts} arrived")
    return lasted


@contextlib.contextmanager
def _tunnel(program: Path, folder: Path) -> Iterator[Carrier]:
    with session(program, folder) as (source, target), listen(target.run / "migration" / "memory.sock") as exit_:
        pids = source.process.pid, target.process.pid
        yield Carrier(source.run / "migration" / "memory.sock", exit_, pids)


@contextlib.contextmanager
def _socat_tls(folder: Path) -> Iterator[Carrier]:
    with _socat(folder, socat.tls(folder)) as made:
        yield made


@contextlib.contextmanager
def _socat_tcp(folder: Path) -> Iterator[Carrier]:
    with _socat(folder, socat.TCP) as made:
        yield made


@contextlib.contextmanager
def _socat(folder: Path, transport: socat.Transport) -> Iterator[Carrier]:
    entrance, leads_to = folder / "entrance", folder / "exit"
    with listen(leads_to) as exit_, socat.carrying(entrance, leads_to, transport) as pids:
        yield Carrier(entrance, exit_, pids)


def _processor_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _anonymous(pid: int) -> float:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if not found:
        raise Failure(f"process {pid} has ended")
    return int(found[1]) / 1024
