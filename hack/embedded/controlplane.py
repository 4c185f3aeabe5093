"""Defines the processes that run once per cluster: etcd, API server, controller manager, scheduler and registry."""

from __future__ import annotations

import json
from pathlib import Path

from . import files, imagestore
from .build import Programs
from .certificates import Certificates
from .layout import API_PORT, SERVICE_RANGE, Layout, image_store
from .processes import GARBAGE, Process

AUDITED_GROUP = "system:serviceaccounts:drydock"
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
CONTROLLER_MANAGER_PORT, SCHEDULER_PORT = 10257, 10259


def audit_policy() -> dict[str, object]:
    """Return the audit policy: log only requests of Drydock's service accounts, and migrations' status patches with bodies."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "Request",
                "userGroups": [AUDITED_GROUP],
                "verbs": ["patch"],
                "resources": [{"group": "kubevirt.io", "resources": ["virtualmachineinstancemigrations/status"]}],
            },
            {"level": "Metadata", "userGroups": [AUDITED_GROUP]},
            {"level": "None"},
        ],
    }


def registry_config(layout: Layout, storage: Path) -> dict[str, object]:
    """Return the configuration of a simple registry whose images outlive the cluster."""
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(storage), "maxthreads": 100},
            "delete": {"enabled": True},
            "maintenance": {"uploadpurging": {"enabled": False}},
        },
        "http": {"addr": layout.registry, "secret": f"drydock-{layout.name}"},
    }


def scheduler_config(kubeconfig: Path) -> dict[str, object]:
    """Return the scheduler's configuration. There is only one scheduler, so it needs no leader election."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100, "burst": 200},
    }


class ControlPlane:
    """The command lines and configuration of a cluster's central processes."""

    def __init__(self, layout: Layout, programs: Programs, certificates: Certificates) -> None:
        self.layout = layout
        self.programs = programs
        self.certificates = certificates

    def processes(self) -> list[Process]:
        """Return all processes in the order in which they are started."""
        return [self.registry, self.etcd, self.apiserver, *self.clients()]

    def clients(self) -> list[Process]:
        """Return the processes that do all their work through the API server."""
        return [self.controller_manager, self.scheduler]

    def configure(self) -> None:
        """Write the programs' configuration files and create the folders that they need."""
        config, certificates = self.layout.config, self.certificates
        files.write(config / "audit-policy.json", _json(audit_policy()))
        # YAML parsers accept JSON. Only the name of the registry's file matters.
        files.write(config / "registry.yml", _json(registry_config(self.layout, image_store())))
        for user in ("kube-controller-manager", "kube-scheduler"):
            files.write(config / f"{user}.kubeconfig", certificates.kubeconfig(user), mode=0o600)
        files.write(
            config / "kube-scheduler.json", _json(scheduler_config(config / "kube-scheduler.kubeconfig"))
        )
        files.write(self.layout.kubeconfig, certificates.kubeconfig("admin"), mode=0o600)
        image_store().mkdir(parents=True, exist_ok=True)
        self.layout.logs.mkdir(parents=True, exist_ok=True)

    @property
    def registry(self) -> Process:
        config = self.layout.config / "registry.yml"
        return self._process(
            imagestore.PART,
            ["docker-registry", "serve", str(config)],
            [config],
        )

    @property
    def etcd(self) -> Process:
        client, peer = self.etcd_url, f"http://{self.layout.loopback}:{ETCD_PEER_PORT}"
        return self._process(
            "etcd",
            [
                self.programs["etcd"],
                f"--data-dir={self.layout.directory / 'etcd'}",
                f"--name={self.layout.name}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={self.layout.name}={peer}",
                "--unsafe-no-fsync",
                "--snapshot-count=5000",
                "--log-level=warn",
            ],
        )

    @property
    def apiserver(self) -> Process:
        policy = self.layout.config / "audit-policy.json"
        pem = self.certificates.path
        flags = {
            "bind-address": self.layout.address,
            "advertise-address": self.layout.address,
            "secure-port": API_PORT,
            "etcd-servers": self.etcd_url,
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "client-ca-file": self.certificates.ca.certificate,
            "tls-cert-file": pem("kube-apiserver"),
            "tls-private-key-file": pem("kube-apiserver"),
            "kubelet-certificate-authority": self.certificates.ca.certificate,
            "kubelet-client-certificate": pem("kubelet-client"),
            "kubelet-client-key": pem("kubelet-client"),
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": pem("service-accounts"),
            "service-account-signing-key-file": pem("service-accounts"),
            # The API server connects to the pods of webhooks and aggregated APIs directly:
            # there is no kube-proxy on the host.
            "enable-aggregator-routing": "true",
            "requestheader-client-ca-file": self.certificates.front_proxy_ca.certificate,
            "requestheader-allowed-names": "front-proxy",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-username-headers": "X-Remote-User",
            "proxy-client-cert-file": pem("front-proxy"),
            "proxy-client-key-file": pem("front-proxy"),
            "audit-policy-file": policy,
            "audit-log-path": self.layout.audit_log,
            "audit-log-format": "json",
            "audit-log-mode": "blocking",
            # Large enough that the log is not rotated while the cluster exists: the readers of the log need all of it.
            "audit-log-maxsize": 4096,
            "audit-log-maxbackup": 1,
            "profiling": "false",
        }
        argv = [self.programs["kube-apiserver"], *_flags(flags)]
        return self._process("kube-apiserver", argv, [policy])

    @property
    def controller_manager(self) -> Process:
        kubeconfig = self.layout.config / "kube-controller-manager.kubeconfig"
        pem = self.certificates.path
        flags = {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": self.layout.loopback,
            "secure-port": CONTROLLER_MANAGER_PORT,
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": pem("service-accounts"),
            "root-ca-file": self.certificates.ca.certificate,
            "cluster-signing-cert-file": self.certificates.ca.certificate,
            "cluster-signing-key-file": pem("ca"),
            "requestheader-client-ca-file": self.certificates.front_proxy_ca.certificate,
            "allocate-node-cidrs": "false",
            # The default folder is on the host and would be left behind.
            "flex-volume-plugin-dir": self.layout.config / "volume-plugins",
            "node-monitor-period": "2s",
            "node-monitor-grace-period": "30s",
            "kube-api-qps": 100,
            "kube-api-burst": 200,
            "profiling": "false",
        }
        argv = [self.programs["kube-controller-manager"], *_flags(flags)]
        return self._process("kube-controller-manager", argv, [kubeconfig])

    @property
    def scheduler(self) -> Process:
        config = self.layout.config / "kube-scheduler.json"
        kubeconfig = self.layout.config / "kube-scheduler.kubeconfig"
        flags = {
            "config": config,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": self.layout.loopback,
            "secure-port": SCHEDULER_PORT,
        }
        argv = [self.programs["kube-scheduler"], *_flags(flags)]
        return self._process("kube-scheduler", argv, [config])

    @property
    def etcd_url(self) -> str:
        return f"http://{self.layout.loopback}:{ETCD_PORT}"

    def _process(
        self,
        part: str,
        argv: list[str],
        configuration: list[Path] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Process:
        return Process(
            part=part,
            argv=argv,
            cluster=self.layout.directory,
            environment=GARBAGE | (environment or {}),
            configuration=configuration or [],
        )


def _flags(flags: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"
