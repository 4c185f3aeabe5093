"""Installs the Debian packages that each purpose needs, and checks for toolchains."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .commands import last_lines
from .errors import Failure
from .progress import Progress
from .toolchains import check

PACKAGES: dict[str, tuple[str, ...]] = {
    # Downloading the Go modules of the cluster's programs, which are built while the other packages are installed.
    "programs": ("ca-certificates",),
    # The embedded cluster itself.
    "cluster": (
        "ca-certificates",
        "conntrack",
        "containernetworking-plugins",
        "docker-registry",
        "iproute2",
        "iptables",
        "kmod",
        "mount",
        "openssl",
        "procps",
        "runc",
        "util-linux",
    ),
    # The cluster's self-test, which packs a small image with this program.
    "selftest": ("busybox-static",),
    # Building the Rust crates, which link libvirt and need its headers.
    "rust": ("gcc", "libc6-dev", "libvirt-dev", "pkg-config"),
    # Building container images without a container engine.
    "images": ("busybox-static", "debian-archive-keyring", "mmdebstrap", "zstd"),
    # Building the guest disk: a kernel, a boot loader and a file system in one file.
    "guest": (
        "binutils",
        "busybox-static",
        "genisoimage",
        "mtools",
        "qemu-system-x86",
        "qemu-utils",
        "syslinux",
        "syslinux-common",
    ),
    # Tests that connect to a real libvirt on this host.
    "libvirt": (
        "libvirt-clients",
        "libvirt-daemon",
        "libvirt-daemon-driver-qemu",
        "qemu-system-x86",
        "qemu-utils",
        "xorriso",
    ),
    # Tests of the console: a browser, and a type checker for its script.
    "browser": ("chromium-headless-shell", "node-typescript", "python3-venv"),
    # Programs with which benchmarks compare Drydock.
    "bench": ("openssl", "socat"),
}

# Services of these packages that would occupy a port of a cluster: `docker-registry` listens on *:5000.
SERVICES = ("docker-registry",)

_ATTEMPTS = 4
_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\n# Drydock: services that packages bring stay off.\nexit 101\n"
_LOCK = Path("/run/lock/drydock-packages.lock")


def missing(groups: Iterable[str]) -> list[str]:
    """Return the packages of these groups that are not installed."""
    wanted: list[str] = []
    for group in groups:
        if group not in PACKAGES:
            raise Failure(f"unknown package group {group!r}; known: {', '.join(PACKAGES)}")
        wanted += [package for package in PACKAGES[group] if package not in wanted]
    return _absent(wanted)


def _absent(wanted: Sequence[str]) -> list[str]:
    """Return the wanted packages that are not installed."""
    if not wanted:
        return []
    if shutil.which("dpkg-query") is None:
        raise Failure("Debian or a derivative is required: dpkg-query is not installed")
    response = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    installed = {line.split()[0] for line in response.splitlines() if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]


def ensure(
    groups: Iterable[str],
    progress: Progress | None = None,
    toolchains: Iterable[str] = ("go", "python3"),
) -> None:
    """Install missing packages and check the toolchains."""
    progress = progress or Progress()
    check(toolchains)
    _forget_policy()
    packages = missing(groups)
    if not packages:
        return
    if os.geteuid() != 0:
        raise Failure(f"installing the missing packages requires root privileges: {' '.join(packages)}")
    with _alone(progress):
        # Another command may have installed the packages meanwhile.
        packages = missing(groups)
        if packages:
            _install(packages, progress)
    left = missing(groups)
    if left:
        raise Failure(f"apt-get succeeded but these packages are still missing: {' '.join(left)}")


def _install(packages: Sequence[str], progress: Progress) -> None:
    with progress.step(f"installing {' '.join(packages)}", announce=True), _services_stay_off():
        _apt(progress, "update")
        try:
            _apt(progress, "install", "--yes", "--no-install-recommends", *packages)
        finally:
            # Do this after an interruption, too: the next run cannot know that this one installed the package.
            brought = [package for package in SERVICES if package in packages]
            left = _absent(brought)
            _disable([package for package in brought if package not in left], progress)


def _disable(services: Iterable[str], progress: Progress) -> None:
    """Prevent services that a package has enabled from starting at the next boot."""
    for service in services:
        # The first command needs an init script, the second a unit. Either removes the link by which systemd starts the service.
        commands = (["update-rc.d", service, "disable"], ["deb-systemd-helper", "disable", f"{service}.service"])
        # deb-systemd-helper refuses to run outside a package's maintainer scripts, which have this variable.
        results = [_run_to_end(argv, progress, {"DPKG_MAINTSCRIPT_PACKAGE": service}) for argv in commands]
        if all(code != 0 for code, _ in results):
            progress.note(f"the service {service} could not be disabled; it starts at the next boot")


def _apt(progress: Progress, *arguments: str) -> None:
    """Run apt-get, with retries: mirrors and locks can fail temporarily."""
    options = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-q"]
    printed = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(3 * attempt)
        # apt-get refuses to run after dpkg was interrupted, so complete dpkg's work first. If this fails, apt-get reports why.
        _run_to_end(["dpkg", "--configure", "-a"], progress)
        code, printed = _run_to_end(["apt-get", *options, *arguments], progress)
        if code == 0:
            return
    raise Failure(f"apt-get {arguments[0]} failed {_ATTEMPTS} times", last_lines(printed))


def _run_to_end(
    argv: Sequence[str], progress: Progress, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a command that must not be interrupted, and return its exit code and output.

    The command runs in its own session, so signals to the session of this process do not reach it. If this process is
    interrupted, it still waits until the command ends.
    """
    fixed = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **fixed, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError:
            return 127, f"command not found: {argv[0]}"
        try:
            code = process.wait()
        except BaseException:
            progress.note(f"interrupted; waiting for {argv[0]}, which must not be interrupted")
            process.wait()
            raise
        output.seek(0)
        return code, output.read()


@contextlib.contextmanager
def _alone(progress: Progress) -> Iterator[None]:
    """Hold a lock, so that only one command on this machine installs packages at a time."""
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("waiting: another command is installing packages")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget_policy() -> None:
    """Remove the policy file of a killed installation. A running installation keeps its own."""
    if os.geteuid() != 0 or _policy() != _POLICY_TEXT.encode():
        return
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("a") as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _POLICY.unlink(missing_ok=True)


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    """Prevent the daemons of newly installed packages from starting.

    Debian's maintainer scripts run the policy file before they start a daemon. A policy
    file from elsewhere is an administrator's decision and is kept.
    """
    if _policy() not in (None, _POLICY_TEXT.encode()):
        yield
        return
    _POLICY.write_text(_POLICY_TEXT)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _policy() -> bytes | None:
    """Return the content of the policy file, or None if it does not exist."""
    try:
        return _POLICY.read_bytes()
    except FileNotFoundError:
        return None
