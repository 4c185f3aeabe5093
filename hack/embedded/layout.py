"""Defines the paths, names and addresses of a cluster.

Everything here is a pure function of the cluster's name, its index and its
settings, so that a later run finds what an earlier run has created.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from .errors import Failure

DEFAULT_NAME = "drydock"
SERVICE_RANGE = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
REGISTRY_PORT = 5000
API_PORT = 6443
INDEXES = range(0, 64)
MAX_NODES = 9

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?")


def cache_root() -> Path:
    """Return the folder of the programs that all clusters share."""
    return Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock")).absolute()


def image_store() -> Path:
    """Return the folder with the images of all clusters' registries."""
    return cache_root() / "registry"


def state_root() -> Path:
    """Return the folder for the state of clusters, with one subfolder for each."""
    return Path(os.environ.get("DRYDOCK_STATE", "/var/lib/drydock-embedded")).absolute()


def check_name(name: str) -> str:
    """Return the name. Raise Failure if it cannot be part of host names and file names."""
    if not _NAME.fullmatch(name):
        raise Failure(
            f"cluster name {name!r}: use 1 to 22 lower-case letters, digits and inner hyphens"
        )
    return name


@dataclass(frozen=True)
class Settings:
    """The recorded settings of a cluster."""

    index: int
    nodes: int = 2
    kvm: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> "Settings":
        return Settings(**json.loads(text))


@dataclass(frozen=True)
class NodeLayout:
    """All names, paths and addresses of one node."""

    cluster: str
    number: int
    name: str
    address: str
    pod_range: str
    interface: str
    netns: str
    directory: Path
    cgroup: str

    @property
    def network_namespace(self) -> Path:
        return Path("/run/netns") / self.netns

    @property
    def pod_gateway(self) -> str:
        return str(ipaddress.ip_network(self.pod_range)[1])

    def part(self, program: str) -> str:
        """Return the name of one of this node's processes, such as `kubelet.node1`."""
        return f"{program}.{self.name}"


@dataclass(frozen=True)
class Layout:
    """All names, paths and addresses of one cluster."""

    name: str
    settings: Settings
    root: Path = field(default_factory=state_root)

    @property
    def directory(self) -> Path:
        return self.root / self.name

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def certificates(self) -> Path:
        return self.directory / "certificates"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def description(self) -> Path:
        return self.directory / "cluster.json"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def shared(self) -> Path:
        """The folder that all nodes share, like a network file system."""
        return self.directory / "shared"

    @property
    def bridge(self) -> str:
        return f"drydock{self.settings.index}"

    @property
    def node_range(self) -> str:
        return f"10.89.{self.settings.index}.0/24"

    @property
    def pod_range(self) -> str:
        return f"10.{128 + self.settings.index}.0.0/16"

    @property
    def address(self) -> str:
        """The host's address on the bridge, on which the API server and the registry listen."""
        return f"10.89.{self.settings.index}.1"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    @property
    def registry(self) -> str:
        return f"{self.address}:{REGISTRY_PORT}"

    @property
    def loopback(self) -> str:
        """The cluster's own loopback address, for servers that pods must not reach."""
        return f"127.89.{self.settings.index}.1"

    @property
    def cgroup(self) -> str:
        return f"/drydock-embedded/{self.name}"

    @cached_property
    def nodes(self) -> tuple[NodeLayout, ...]:
        return tuple(self._node(number) for number in range(1, self.settings.nodes + 1))

    def node(self, name: str) -> NodeLayout:
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise Failure(f"cluster {self.name} has no node {name!r}; it has {known}")

    def _node(self, number: int) -> NodeLayout:
        index = self.settings.index
        name = node_name(self.name, number)
        return NodeLayout(
            cluster=self.name,
            number=number,
            name=name,
            address=f"10.89.{index}.{10 + number}",
            pod_range=f"10.{128 + index}.{number}.0/24",
            interface=f"drydock{index}n{number}",
            netns=f"drydock.{self.name}.node{number}",
            directory=self.directory / f"node{number}",
            cgroup=f"{self.cgroup}/node{number}",
        )


def node_name(cluster: str, number: int) -> str:
    """Return the name of a node: `node1` in the default cluster, `NAME-node1` in any other."""
    return f"node{number}" if cluster == DEFAULT_NAME else f"{cluster}-node{number}"


def choose_index(taken: Iterable[int], networks: Iterable[str]) -> int:
    """Return the first index that no cluster uses and whose address ranges overlap no route.

    `networks` are the destinations of the host's routes. A default route overlaps
    everything and is therefore ignored.
    """
    used = set(taken)
    routed = [ipaddress.ip_network(network, strict=False) for network in networks]
    routed = [network for network in routed if network.version == 4 and network.prefixlen > 0]
    for index in INDEXES:
        if index in used:
            continue
        layout = Layout("candidate", Settings(index), Path("/"))
        wanted = [ipaddress.ip_network(layout.node_range), ipaddress.ip_network(layout.pod_range)]
        if not any(network.overlaps(want) for network in routed for want in wanted):
            return index
    raise Failure("no free subnet: every index is taken by a cluster or by a route of this host")
