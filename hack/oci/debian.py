"""Downloads Debian packages and creates Debian roots from the mirror that this machine uses.

No host name is hard-coded. The mirror, its keys and its connection settings are
those of this machine's apt, with the release replaced by the requested one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from oci.progress import Failure, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Settings that define how to reach a mirror. The other settings of this machine's
# apt (hooks, recommends, languages) must not affect an image.
REACHING = re.compile(
    r'^(Acquire::(?:https?::(?:[^"\s]*::)?(?:Proxy|Verify-Peer|Verify-Host|CaInfo|Timeout|Pipeline-Depth)'
    r'|Check-Valid-Until|Check-Date|Retries|ForceIPv4|ForceIPv6)) "(.*)";$'
)
SIGNED_BY = re.compile(r"signed-by\s*[:=]\s*(/[^\s\]]+)", re.IGNORECASE)

# The dpkg options of Debian's own slim images. They also apply to packages that are installed later.
EXCLUDES = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
# Runs on the finished root, its first argument: removes all traces of this machine, its mirror and the build time.
CLEAN = r"""
set -e
rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap
rm -rf "$1"/var/log/* "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/cache/debconf/*-old
rm -f "$1"/var/lib/dpkg/*-old "$1"/var/cache/ldconfig/aux-cache "$1"/etc/machine-id "$1"/etc/*-
for name in hostname hosts resolv.conf; do
    rm -f "$1/etc/$name"
    : > "$1/etc/$name"
    chmod 0644 "$1/etc/$name"
done
printf '#!/bin/sh\n# Nothing is started while an image is built.\nexit 101\n' > "$1/usr/sbin/policy-rc.d"
chmod 0755 "$1/usr/sbin/policy-rc.d"
"""


@dataclass(frozen=True)
class Mirror:
    """This machine's Debian mirror, configured for another release."""

    suite: str
    sources: str
    settings: str
    keyrings: tuple[Path, ...]

    @classmethod
    def of_this_machine(cls, suite: str) -> Mirror:
        """Read this machine's apt configuration, and replace its release by `suite`."""
        found = _debian_targets()
        host = _host_suite()
        kinds: dict[tuple[str, str], None] = {}
        for address, release in found:
            if release in (host, f"{host}-updates", f"{host}-security"):
                kinds[address, release.replace(host, suite, 1)] = None
        if not kinds:
            raise Failure(
                f"this machine's apt has no source of Debian {host} with the component main;"
                " images are built from the same mirror: add such a source and run apt-get update"
            )
        lines = [f"deb {address} {release} main" for address, release in kinds]
        keyrings = {KEYRING: None} if KEYRING.exists() else {}
        for part in sorted(Path("/etc/apt/trusted.gpg.d").glob("*.[ag][sp][cg]")):
            keyrings[part] = None
        for part in _signed_by({address for address, _ in kinds}):
            keyrings[part] = None
        return cls(suite, "\n".join(lines) + "\n", _settings(), tuple(keyrings))

    def write_apt(self, folder: Path) -> None:
        """Write sources, keys and settings into an apt configuration folder."""
        for name in ("sources.list.d", "trusted.gpg.d", "apt.conf.d", "preferences.d"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for old in (folder / "sources.list", *(folder / "sources.list.d").iterdir()):
            old.unlink(missing_ok=True)
        (folder / "sources.list").write_text(self.sources)
        settings = self.settings
        if "https:" in self.sources and HOST_CERTIFICATES.exists() and "CaInfo" not in settings:
            shutil.copy(HOST_CERTIFICATES, folder / "mirror-certificates.crt")
            settings += 'Acquire::https::CaInfo "/etc/apt/mirror-certificates.crt";\n'
        (folder / "apt.conf.d" / "00reach-mirror").write_text(settings)
        self.write_keyrings(folder / "trusted.gpg.d")

    def write_keyrings(self, folder: Path) -> None:
        """Copy the keyrings that verify the mirror's signatures into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for keyring in self.keyrings:
            shutil.copy(keyring, folder / keyring.name)

    def make_slim_root(self, target: Path, scratch: Path) -> None:
        """Create a minimal Debian root in the folder `target`."""
        settings, keyrings = scratch / "apt.conf", scratch / "keyrings"
        settings.write_text(self.settings)
        self.write_keyrings(keyrings)
        command: list[str] = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"]
        command += [f"--dpkgopt={exclude}" for exclude in EXCLUDES]
        command += [f"--aptopt={settings}", f"--keyring={keyrings}"]
        command += [self.suite, str(target), "-"]
        run(
            command,
            log=scratch / "mmdebstrap.log",
            what=f"creating a Debian {self.suite} root",
            stdin=self.sources,
        )
        clean = ["sh", "-c", CLEAN, "clean", str(target)]
        run(clean, log=scratch / "clean.log", what=f"cleaning the Debian {self.suite} root")

    def download(self, packages: list[str], target: Path, scratch: Path) -> list[Path]:
        """Download packages without their dependencies into `target`; return the paths of all packages there."""
        apt = scratch / "apt"
        for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
            (apt / folder).mkdir(parents=True, exist_ok=True)
        (apt / "state" / "status").touch()
        self.write_keyrings(apt / "etc" / "trusted.gpg.d")
        (apt / "etc" / "sources.list").write_text(self.sources)
        configuration = apt / "apt.conf"
        configuration.write_text(
            self.settings + f'Dir::State "{apt}/state";\nDir::State::status "{apt}/state/status";\n'
            f'Dir::Cache "{apt}/cache";\nDir::Etc::sourcelist "{apt}/etc/sources.list";\n'
            f'Dir::Etc::sourceparts "-";\nDir::Etc::trustedparts "{apt}/etc/trusted.gpg.d";\n'
            'APT::Sandbox::User "root";\n'
        )
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "APT_CONFIG": str(configuration), "LC_ALL": "C"}
        what = f"downloading {', '.join(packages)}"
        run(["apt-get", "-q", "update"], log=scratch / "apt-update.log", what=what, env=env)
        target.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "-q", "download", *packages]
        run(command, log=scratch / "apt-download.log", what=what, env=env, cwd=target)
        return sorted(target.glob("*.deb"))

    def latest_kernel(self, package: str, scratch: Path) -> str:
        """Return the name of the versioned package that a kernel metapackage depends on."""
        target = scratch / "metapackage"
        (archive,) = self.download([package], target, scratch)
        depends = subprocess.run(
            ["dpkg-deb", "--field", str(archive), "Depends"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"linux-image-\d[^\s,(]*", depends)
        if not found:
            raise Failure(f"{package} of Debian {self.suite} depends on no kernel: {depends.strip()}")
        return found[0]


def _host_suite() -> str:
    text = Path("/etc/os-release").read_text()
    found = re.search(r'^VERSION_CODENAME="?(\w+)', text, re.MULTILINE)
    if not found:
        raise Failure("/etc/os-release has no VERSION_CODENAME: images can only be built on a Debian machine")
    return found[1]


def _debian_targets() -> list[tuple[str, str]]:
    """Return the address and the release of each apt source with Debian's main component."""
    listing = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    rows = [line.split("|") for line in listing.splitlines() if line.count("|") == 3]
    # apt knows origins only after it has fetched package lists. If it does, use Debian's sources alone: another
    # vendor's repository may have the same release name.
    known = any(origin == "Debian" for origin, *_ in rows)
    return [
        (address, release)
        for origin, address, release, component in rows
        if component == "main" and (origin == "Debian" or not known)
    ]


def _settings() -> str:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    found = [REACHING.match(line) for line in dump.splitlines()]
    return "".join(f'{match[1]} "{match[2]}";\n' for match in found if match and match[2])


def _signed_by(addresses: set[str]) -> list[Path]:
    """Return the existing keyrings that this machine's apt sources for these addresses name in signed-by."""
    result: dict[Path, None] = {}
    etc = Path("/etc/apt")
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        for stanza in re.split(r"\n\s*\n", text) if path.suffix == ".sources" else text.splitlines():
            if any(address.rstrip("/") in stanza for address in addresses):
                result.update((Path(name), None) for name in SIGNED_BY.findall(stanza) if Path(name).exists())
    return list(result)
