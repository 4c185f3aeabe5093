"""Builds the guest's disk: Debian's cloud kernel, busybox and a few scripts.

The image has an MBR and one FAT partition that syslinux boots. So any BIOS can
start it from any kind of disk, and the build needs no loop device. For EFI, the
partition has Debian's signed boot loaders, which also support secure boot.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from guest import agent, initrd, store
from oci.builder import content_key, key_of
from oci.busybox import install_applets
from oci.debian import Mirror
from oci.layer import epoch
from oci.progress import Failure, run, note, size, step

SOURCES = Path(__file__).resolve().parent
DISK_SIZE = 64 << 20
SECTOR = 512
PARTITION_START = 2048 * SECTOR
BOOT_RECORD = Path("/usr/lib/syslinux/mbr/mbr.bin")
FAT16_LBA = 0x0E
# quiet: each line on the console costs time on an emulated machine. The following options also save time; the guest
# has nothing to protect. These options skip tests of randomness, certificates, ciphers and derived keys, which take a quarter
# of a boot.
# no5lvl, pcie_ports: skip a fifth level of page tables, and services of unused ports. Together, these take a tenth.
# rodata, lsm, trace_eval_init: skip protection of the kernel's own memory, and names of values in unused traces.
# no_timer_check: if an emulated machine waits for a CPU, its first ticks come too late. Linux then assumes that the
# timer is broken, and panics. Under KVM, Linux skips this check, too.
# rcu_cpu_stall_suppress: while the machine waits for a CPU, Linux must not print pages of stall warnings.
KERNEL_LINE = (
    "console=tty0 console=ttyS0,115200 quiet mitigations=off nokaslr cryptomgr.notests=1 "
    "no_timer_check rcupdate.rcu_cpu_stall_suppress=1 no5lvl pcie_ports=compat rodata=off lsm= net.ifnames=0 "
    "initcall_blacklist=jent_mod_init,load_system_certificate_list,init_encrypted,crypto_kdf108_init,trace_eval_init"
)
BOOT_MENU = f"""DEFAULT drydock
PROMPT 0
TIMEOUT 0
LABEL drydock
  KERNEL vmlinuz
  INITRD initrd
  APPEND {KERNEL_LINE}
"""
# Microsoft signs shim, and the key in shim verifies GRUB and the kernel. The path of GRUB's folder is built into GRUB.
EFI_PACKAGES = ("shim-signed", "grub-efi-amd64-signed")
# With secure boot, the kernel loads only modules with signatures that its certificates verify. The second archive has
# these modules and replaces those of the first.
EFI_MENU = f"""linux /vmlinuz {KERNEL_LINE.replace("load_system_certificate_list,", "")}
initrd /initrd /signed
boot
"""
FOLDERS = ("dev", "proc", "sys", "run", "tmp", "root", "boot", "mnt", "sbin")


def build(cache: Path, suite: str) -> Path:
    """Build the guest's disk if its sources have changed, and return its path."""
    with store.locked(cache):
        system, of_agent = _system(cache / f"packages-{suite}", suite), _agent(cache / f"agent-{suite}", suite)
        of_efi = _efi(cache / f"efi-{suite}", suite)
        parts = [content_key(SOURCES / name) for name in ("root", "agent.py", "beacon.rs", "disk.py", "initrd.py")]
        archives = sorted(path.name for packages in (system, of_agent, of_efi) for path in packages.glob("*.deb"))
        key = key_of("guest", parts, archives)
        return store.stored(cache, key, lambda scratch: _assemble(system, of_agent, of_efi, scratch))


def _system(folder: Path, suite: str) -> Path:
    """Download the kernel and busybox once. --fresh discards them."""

    def names(mirror: Mirror, scratch: Path) -> list[str]:
        return [mirror.latest_kernel("linux-image-cloud-amd64", scratch), "busybox-static"]

    return _packages(folder, suite, "cloud kernel and busybox", names)


def _agent(folder: Path, suite: str) -> Path:
    """Download the guest agent and its libraries once."""
    return _packages(folder, suite, "QEMU guest agent", lambda mirror, scratch: list(agent.PACKAGES))


def _efi(folder: Path, suite: str) -> Path:
    """Download the boot loaders for EFI once."""
    return _packages(folder, suite, "signed boot loaders", lambda mirror, scratch: list(EFI_PACKAGES))


def _packages(folder: Path, suite: str, what: str, names: Callable[[Mirror, Path], list[str]]) -> Path:
    if not folder.exists():
        with step(f"guest: download Debian's {what}"):
            scratch = folder.with_name("download")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            mirror = Mirror.of_this_machine(suite)
            mirror.download(names(mirror, scratch), scratch / "packages", scratch)
            (scratch / "packages").rename(folder)
            shutil.rmtree(scratch)
    return folder


def _unpack(packages: Path, folder: Path) -> Path:
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True)
    return folder


def _assemble(system: Path, of_agent: Path, of_efi: Path, scratch: Path) -> None:
    with step("guest: program, initrd and disk"):
        _fill(system, of_agent, of_efi, scratch)
    made = scratch / store.NAME
    note(f"        {size(made.stat().st_size)}, which the guest sees as {DISK_SIZE >> 20} MiB")


def _fill(system: Path, of_agent: Path, of_efi: Path, scratch: Path) -> None:
    unpacked, root = _unpack(system, scratch / "unpacked"), scratch / "root"
    busybox = next(path for path in (unpacked / "usr/bin/busybox", unpacked / "bin/busybox") if path.exists())
    (kernel,) = (unpacked / "boot").glob("vmlinuz-*")
    root.mkdir()
    install_applets(busybox, root / "bin")
    shutil.copytree(SOURCES / "root", root, dirs_exist_ok=True)
    for name in FOLDERS:
        (root / name).mkdir()
    _compile(root / "bin" / "beacon", scratch)
    folder = root / "lib" / "modules"
    folder.mkdir()
    loading = initrd.modules(unpacked)
    for name, data in loading.items():
        (folder / name).write_bytes(data)
    (folder / "order").write_text("".join(name + "\n" for name in loading))
    of_file_systems = initrd.modules(unpacked, agent.FILE_SYSTEMS, loading)
    agent.pack(_unpack(of_agent, scratch / "agent"), of_file_systems, scratch / "agent.tgz")
    folder = scratch / "signed-root" / "lib" / "modules"
    folder.mkdir(parents=True)
    for name, data in initrd.modules(unpacked, signed=True).items():
        (folder / name).write_bytes(data)
    _compress(root, scratch / "initrd", scratch)
    _compress(scratch / "signed-root", scratch / "signed", scratch)
    _write_disk(kernel, _unpack(of_efi, scratch / "efi"), scratch)


def _compress(root: Path, archive: Path, scratch: Path) -> None:
    """Write a folder as a compressed archive that the kernel unpacks."""
    plain = scratch / "archive.cpio"
    with plain.open("wb") as output:
        initrd.write(root, output, epoch())
    run(["zstd", "-q", "-15", str(plain), "-o", str(archive)], log=scratch / "zstd.log", what=f"compressing {archive.name}")
    plain.unlink()


def _compile(target: Path, scratch: Path) -> None:
    """Compile the guest's program as a static binary."""
    command = ["rustc", "--edition=2021", "-O", "-Cpanic=abort", "-Cstrip=symbols"]
    # Use a relative path, because the compiler writes the given path into the program.
    command += ["-Ctarget-feature=+crt-static", "-o", str(target), "beacon.rs"]
    run(command, log=scratch / "rustc.log", what="compiling beacon.rs", cwd=SOURCES)


def _write_disk(kernel: Path, of_efi: Path, scratch: Path) -> None:
    raw = scratch / "disk.img"
    sectors = (DISK_SIZE - PARTITION_START) // SECTOR
    entry = struct.pack(
        "<B3sB3sII", 0x80, b"\xfe\xff\xff", FAT16_LBA, b"\xfe\xff\xff", PARTITION_START // SECTOR, sectors
    )
    record = BOOT_RECORD.read_bytes()
    if len(record) > 440:
        raise Failure(f"{BOOT_RECORD} is larger than a boot record")
    with raw.open("wb") as disk:
        disk.truncate(DISK_SIZE)
        disk.write(record.ljust(446, b"\0") + entry + b"\0" * 48 + b"\x55\xaa")
    menu = scratch / "syslinux.cfg"
    menu.write_text(BOOT_MENU)
    menu_of_efi = scratch / "grub.cfg"
    menu_of_efi.write_text(EFI_MENU)
    grub = of_efi / "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
    place = f"{raw}@@{PARTITION_START}"
    # With fixed times and numbers, the same sources result in the same disk.
    env = dict(os.environ) | {"MTOOLS_SKIP_CHECK": "1", "SOURCE_DATE_EPOCH": str(epoch()), "TZ": "UTC"}
    serial = f"{uuid.uuid5(uuid.NAMESPACE_DNS, 'drydock.dev').int & 0xFFFFFFFF:08x}"
    hidden = str(PARTITION_START // SECTOR)
    steps = (
        [
            "mformat",
            "-i",
            place,
            "-T",
            str(sectors),
            "-h",
            "255",
            "-s",
            "63",
            "-H",
            hidden,
            "-N",
            serial,
            "-v",
            "DRYDOCK",
            "::",
        ],
        ["mcopy", "-i", place, str(kernel), "::vmlinuz"],
        ["mcopy", "-i", place, str(scratch / "initrd"), "::initrd"],
        ["mcopy", "-i", place, str(menu), "::syslinux.cfg"],
        ["mcopy", "-i", place, str(scratch / "agent.tgz"), "::agent.tgz"],
        ["mcopy", "-i", place, str(scratch / "signed"), "::signed"],
        ["mmd", "-i", place, "::EFI", "::EFI/BOOT", "::EFI/debian"],
        ["mcopy", "-i", place, str(of_efi / "usr/lib/shim/shimx64.efi.signed"), "::EFI/BOOT/BOOTX64.EFI"],
        ["mcopy", "-i", place, str(grub), "::EFI/BOOT/grubx64.efi"],
        ["mcopy", "-i", place, str(menu_of_efi), "::EFI/debian/grub.cfg"],
        ["syslinux", "--install", "--offset", str(PARTITION_START), str(raw)],
        ["qemu-img", "convert", "-O", "qcow2", str(raw), str(scratch / store.NAME)],
    )
    for command in steps:
        run(command, log=scratch / f"{command[0]}.log", what=command[0], env=env)
