"""Runs a guest under plain QEMU, without KVM, for tests that need no cluster."""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

DEFAULT_WAIT = 60.0


class Machine:
    """An emulated machine with access to its console and to QEMU's monitor."""

    def __init__(self, arguments: Sequence[str], scratch: Path) -> None:
        ours, theirs = socket.socketpair()
        monitor, monitor_theirs = socket.socketpair()
        self.console = ours
        self.text = ""
        self._log = (scratch / "qemu.log").open("wb")
        command = ["qemu-system-x86_64", "-nodefaults", "-machine", "q35,accel=tcg", "-m", "128"]
        command += ["-display", "none", "-no-reboot"]
        command += ["-chardev", f"socket,id=console,fd={theirs.fileno()}", "-serial", "chardev:console"]
        command += [
            "-chardev",
            f"socket,id=monitor,fd={monitor_theirs.fileno()}",
            "-mon",
            "chardev=monitor,mode=control",
        ]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(theirs.fileno(), monitor_theirs.fileno()),
        )
        theirs.close()
        monitor_theirs.close()
        self._greeted = False
        self._monitor_socket = monitor
        self._monitor = monitor.makefile("rw", encoding="utf-8")
        self._log_path = scratch / "qemu.log"

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for part in (self._monitor, self._monitor_socket, self.console, self._log):
            with contextlib.suppress(OSError):
                part.close()

    def expect(self, pattern: str, wait: float = DEFAULT_WAIT) -> re.Match[str]:
        """Read the console until the pattern appears, and return the match. Discard the text up to its end."""
        limit = time.monotonic() + wait
        compiled = re.compile(pattern, re.MULTILINE)
        with selectors.DefaultSelector() as selector:
            selector.register(self.console, selectors.EVENT_READ)
            while True:
                found = compiled.search(self.text)
                if found:
                    self.text = self.text[found.end() :]
                    return found
                if not selector.select(max(0.0, limit - time.monotonic())):
                    raise AssertionError(
                        f"no {pattern!r} within {wait:.0f} s; the console ends with:\n{self._tail()}"
                    )
                data = self.console.recv(65536)
                if not data:
                    raise AssertionError(
                        f"the machine ended before {pattern!r} appeared; the console ends with:\n{self._tail()}"
                    )
                self.text += data.decode(errors="replace").replace("\r", "")

    def type(self, text: str) -> None:
        """Send text to the console."""
        self.console.sendall(text.encode())

    def command(self, name: str, **arguments: Any) -> Any:
        """Send a command to the monitor and return its response."""
        if not self._greeted:
            self._monitor.readline()
            self._greeted = True
            self.command("qmp_capabilities")
        self._monitor.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        self._monitor.flush()
        while True:
            response = json.loads(self._monitor.readline())
            if "return" in response:
                return response["return"]
            if "error" in response:
                raise AssertionError(f"{name}: {response['error']['desc']}")

    def wait(self, limit: float = DEFAULT_WAIT) -> int:
        """Read the console until the machine is off, and return QEMU's exit code."""
        with contextlib.suppress(OSError):
            self.console.settimeout(limit)
            while data := self.console.recv(65536):
                self.text += data.decode(errors="replace").replace("\r", "")
        return self.process.wait(limit)

    def _tail(self) -> str:
        log = self._log_path.read_text(errors="replace").strip()
        return "\n".join(self.text.splitlines()[-20:]) + (f"\nQEMU: {log}" if log else "")


def drive(disk: Path, bus: str, read_only: bool = False) -> list[str]:
    """Return QEMU's arguments for a disk on a bus. The guest's writes are discarded at the end."""
    name = re.sub(r"\W", "", disk.name)
    kind = "qcow2" if disk.suffix == ".qcow2" else "raw"
    media = "readonly=on" if read_only else "snapshot=on"
    drive_ = ["-drive", f"if=none,id={name},file={disk},format={kind},{media}"]
    device = {
        "virtio": ["-device", f"virtio-blk-pci,drive={name}"],
        "sata": ["-device", f"ide-hd,drive={name}"],
        "scsi": [
            "-device",
            f"virtio-scsi-pci,id=scsi{name}",
            "-device",
            f"scsi-hd,drive={name},bus=scsi{name}.0",
        ],
        "cdrom": ["-device", f"ide-cd,drive={name}"],
    }[bus]
    return drive_ + device
