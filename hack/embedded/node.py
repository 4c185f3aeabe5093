"""Defines the processes of one node: its first process, containerd, kubelet and kube-proxy."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import cgroups, files, network
from .build import Programs
from .certificates import Certificates
from .errors import Failure
from .layout import Layout, NodeLayout, cache_root
from .nodeconfig import cni_config, containerd_config, kube_proxy_config, kubelet_config
from .nodeconfig import mirror_config
from .nodeinit import NodeSpec
from .processes import GARBAGE, SYSTEM_PATH, Process

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


class Node:
    """One node of a cluster, as a set of processes."""

    def __init__(self, layout: Layout, node: NodeLayout, programs: Programs) -> None:
        self.layout = layout
        self.node = node
        self.programs = programs
        self.name = node.name

    @property
    def config(self) -> Path:
        return self.node.directory / "config"

    @property
    def machine(self) -> Process:
        """The node's first process. Killing it stops the whole node, like a power cut."""
        spec = NodeSpec(
            name=self.name,
            directory=str(self.node.directory),
            shared=str(self.layout.shared),
            keep=[str(self.layout.directory), str(cache_root())],
            kvm=self.layout.settings.kvm,
            pause=self.programs["pause"],
        )
        return Process(
            part=self.name,
            argv=[sys.executable, "-m", "embedded.nodeinit", spec.to_json()],
            cluster=self.layout.directory,
            environment={"PYTHONPATH": str(_PACKAGE_FOLDER), "PYTHONDONTWRITEBYTECODE": "1"},
            wrapper=[
                *("nsenter", f"--net={self.node.network_namespace}"),
                *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork"),
                *("--kill-child=KILL", "--propagation=slave"),
            ],
            becomes="pause",
        )

    @property
    def containerd(self) -> Process:
        path = f"{self.programs.path_of('containerd')}:{SYSTEM_PATH}"
        config = self.config / "containerd.toml"
        return self._inside(
            "containerd",
            [self.programs["containerd"], "--config", str(config)],
            [config],
            {"PATH": path},
        )

    @property
    def kubelet(self) -> Process:
        config = self.config / "kubelet.json"
        return self._inside(
            "kubelet",
            [
                self.programs["kubelet"],
                f"--config={config}",
                f"--kubeconfig={self.config / 'kubelet.kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.node.address}",
            ],
            [config],
        )

    @property
    def kube_proxy(self) -> Process:
        config = self.config / "kube-proxy.json"
        return self._inside("kube-proxy", [self.programs["kube-proxy"], f"--config={config}"], [config])

    def processes(self) -> list[Process]:
        """Return all processes in the order in which they are started."""
        return [self.machine, self.containerd, self.kubelet, self.kube_proxy]

    def configure(self, certificates: Certificates) -> None:
        """Write the configuration of the node's programs, and create the node's cgroup and network."""
        layout, node = self.layout, self.node
        mirrors = self.config / "mirrors"
        files.write(mirrors / "_default" / "hosts.toml", mirror_config(layout.registry))
        files.write(self.config / "containerd.toml", containerd_config(layout, mirrors))
        files.write(
            self.config / "kubelet.json",
            _json(kubelet_config(node, certificates, CONTAINERD_SOCKET)),
        )
        files.write(
            self.config / "kubelet.kubeconfig",
            certificates.kubeconfig(f"kubelet.{node.name}"),
            mode=0o600,
        )
        proxy_kubeconfig = files.write(
            self.config / "kube-proxy.kubeconfig", certificates.kubeconfig("kube-proxy"), mode=0o600
        )
        files.write(
            self.config / "kube-proxy.json", _json(kube_proxy_config(layout, node, proxy_kubeconfig))
        )
        # This file appears in the node's /etc: the folder is the upper one of the overlay that the node mounts there.
        files.write(node.directory / "etc/cni/net.d/10-drydock.conflist", _json(cni_config(node)))
        cgroups.ensure(node.cgroup)
        network.ensure_node(layout, node)

    def is_furnished(self) -> bool:
        """Return whether the node's first process has set up the node."""
        pid = self.machine.pid()
        if pid is None:
            return False
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return arguments[0].decode() == self.programs["pause"]

    def entry(self) -> list[str]:
        """Return the command prefix that runs a command inside the node. Raise Failure if the node is off."""
        pid = self.machine.pid()
        if pid is None:
            raise Failure(f"node {self.name} is off", self.machine.last_lines())
        return ["nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]

    def _inside(
        self,
        program: str,
        argv: Sequence[str],
        configuration: Sequence[Path],
        environment: dict[str, str] | None = None,
    ) -> Process:
        pid = self.machine.pid()
        # If the node is off, its processes can be described, but not started.
        wrapper = self.entry() if pid is not None else ["nsenter"]
        return Process(
            part=self.node.part(program),
            argv=argv,
            cluster=self.layout.directory,
            environment=GARBAGE | (environment or {}),
            wrapper=wrapper,
            configuration=configuration,
        )


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"
