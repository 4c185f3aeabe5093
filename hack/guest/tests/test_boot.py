"""Boots the guest's disk under emulation and checks its console output.

Needs the packages that hack/images needs, and QEMU. Builds the disk if it is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import unittest
from pathlib import Path

from guest import bare, disk, seed
from guest.machine import Machine, drive

CACHE = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock")) / "images" / "guest"
META = '{"instance-id": "boot-test.default", "local-hostname": "boot-test"}'
USER_DATA = r"""#cloud-config
password: fedora
chpasswd: { expire: False }
drydock:
  count: 200ms
  udp: "UDP"
  udp-interval: 100ms
bootcmd:
- echo "bootcmd ran"
runcmd:
- echo 'runcmd' ran, with a back\\slash
- [ sh, -c, "cat /etc/note; ls -l /etc/note" ]
write_files:
- path: /etc/note
  permissions: '0600'
  content: |
    note: first line
      second line
"""
NETWORK_2 = """version: 2
ethernets:
  enp1s0:
    addresses: [ 192.0.2.10/24 ]
    gateway4: 192.0.2.1
    nameservers:
      addresses: [ 192.0.2.53 ]
"""
NETWORK_1 = """version: 1
config:
- type: physical
  name: eth0
  subnets:
  - type: static
    address: 198.51.100.7
    netmask: 255.255.255.0
    gateway: 198.51.100.1
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "needs QEMU")
@unittest.skipUnless(shutil.which("genisoimage"), "needs genisoimage")
class Boot(unittest.TestCase):
    """Boots from each bus, each time with different data."""

    disk: Path
    bare: Path

    @classmethod
    def setUpClass(cls) -> None:
        # Build before the first test: otherwise a build's output would appear in the line with a test's result.
        cls.disk = disk.build(CACHE, "trixie")
        cls.bare = bare.build(CACHE.parent / "bare-guest")

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="drydock-boot-")
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def test_virtio_disk_with_iso(self) -> None:
        iso = self.scratch / "seed.iso"
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(receiver.close)
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(30)
        # 10.0.2.2 is the guest's address for this machine in QEMU's user network.
        user_data = USER_DATA.replace("UDP", f"10.0.2.2:{receiver.getsockname()[1]}")
        seed.write_iso(iso, {"user-data": user_data, "meta-data": META}, self.scratch)
        arguments = drive(self.disk, "virtio") + drive(iso, "cdrom", read_only=True)
        arguments += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"]
        with Machine(arguments, self.scratch) as machine:
            machine.expect(r"^bootcmd ran$")
            machine.expect(r"^drydock-guest address eth0 10\.0\.2\.15/24$")
            machine.expect(r"^runcmd ran, with a back\\slash$")
            machine.expect(r"^note: first line\n  second line$")
            machine.expect(r"^-rw-------.*/etc/note$")
            ready = machine.expect(r"^drydock-guest ready hostname=(\S+) boot=([0-9.]+)s data=nocloud$")
            self.assertEqual(ready[1], "boot-test")
            self.log_in(machine, "fedora", "fedora")
            ticks = [
                int(machine.expect(r"tick (\d+) boot=[0-9a-f]{8} wall=\d+\.\d{3} up=\d+\.\d{3} late=\d+ms$")[1])
                for _ in range(5)
            ]
            self.assertEqual(ticks, list(range(ticks[0], ticks[0] + 5)), "a tick is missing or was printed twice")
            datagrams = [int(receiver.recv(200).split()[1]) for _ in range(5)]
            self.assertEqual(datagrams, [1, 2, 3, 4, 5], "a datagram is missing or was sent twice")
            self.power_off(machine)

    def test_sata_disk_with_fat_and_network_data(self) -> None:
        fat = self.scratch / "seed.img"
        files = {
            "user-data": "#!/bin/sh\necho script ran on $(hostname)\n",
            "meta-data": META,
            "network-config": NETWORK_2,
        }
        seed.write_vfat(fat, files)
        arguments = drive(self.disk, "sata") + drive(fat, "virtio", read_only=True)
        arguments += ["-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net"]
        with Machine(arguments, self.scratch) as machine:
            machine.expect(r"^drydock-guest address eth0 192\.0\.2\.10/24$")
            machine.expect(r"^script ran on boot-test$")
            machine.expect(r"^drydock-guest ready hostname=boot-test .* data=nocloud$")
            machine.expect(r"login: $")
            machine.type("root\n")
            self.shell(
                machine,
                "ip route; cat /etc/resolv.conf",
                r"default via 192\.0\.2\.1 dev eth0(.|\n)*nameserver 192\.0\.2\.53",
            )
            self.shell(machine, "checksum", r"^checksum sda ([0-9a-f]{64}) up=")
            self.power_off(machine)

    def test_scsi_disk_with_services(self) -> None:
        fat = self.scratch / "seed.img"
        user_data = '#cloud-config\nhostname: "three"\ndrydock: {write: 100ms, http: 8080, listen: 7}\n'
        seed.write_vfat(fat, {"user-data": user_data, "meta-data": META, "network-config": NETWORK_1})
        arguments = drive(self.disk, "scsi") + drive(fat, "virtio", read_only=True)
        arguments += ["-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net"]
        with Machine(arguments, self.scratch) as machine:
            machine.expect(r"^drydock-guest address eth0 198\.51\.100\.7/255\.255\.255\.0$")
            machine.expect(r"^drydock-guest ready hostname=three .*$")
            machine.expect(r"login: $")
            machine.type("root\n")
            self.shell(machine, "wget -qO- http://127.0.0.1:8080/healthz", r"^ok$")
            self.shell(machine, "echo echoed | nc 127.0.0.1 7", r"^echoed$")
            self.shell(machine, "head -2 /boot/ticks", r"^tick 1 .*\ntick 2 ")
            self.power_off(machine)

    def test_no_data_no_network(self) -> None:
        with Machine(drive(self.disk, "virtio"), self.scratch) as machine:
            machine.expect(r"^drydock-guest ready hostname=drydock-guest boot=[0-9.]+s data=none$")
            machine.expect(r"drydock-guest login: $")
            machine.type("root\n")
            self.shell(machine, "id -un", r"^root$")
            machine.type("poweroff\n")
            machine.expect(r"drydock-guest power off up=")
            self.assertEqual(machine.wait(), 0)

    def test_guest_without_operating_system(self) -> None:
        boots = set()
        for bus in ("virtio", "sata"):
            with Machine(drive(self.bare, bus), self.scratch) as machine:
                boots.add(machine.expect(r"^drydock-guest ready boot=([0-9a-f]{8}) data=none$")[1])
                ticks = [
                    int(machine.expect(r"^tick (\d+) boot=[0-9a-f]{8} up=\d+\.\d{3} late=\d+ms$")[1]) for _ in range(5)
                ]
                self.assertEqual(ticks, [1, 2, 3, 4, 5], "a tick is missing or was printed twice")
                self.power_off(machine)
        self.assertEqual(len(boots), 2, "two boots have the same number")

    def log_in(self, machine: Machine, account: str, password: str) -> None:
        machine.expect(r"login: ")
        machine.type(f"{account}\n")
        machine.expect(r"Password: ")
        machine.type(f"{password}\n")
        self.shell(machine, "echo logged in", r"^logged in$")

    def shell(self, machine: Machine, command: str, response: str) -> re.Match[str]:
        machine.expect(r"[~\w]# ")
        machine.type(f"{command}\n")
        return machine.expect(response)

    def power_off(self, machine: Machine) -> None:
        machine.command("system_powerdown")
        machine.expect(r"drydock-guest power off up=")
        self.assertEqual(machine.wait(), 0)


if __name__ == "__main__":
    unittest.main()
