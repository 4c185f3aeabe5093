"""Generates the configuration of a node's programs."""

from __future__ import annotations

from pathlib import Path

from .certificates import Certificates
from .layout import Layout, NodeLayout

SANDBOX_IMAGE = "localhost/drydock/pause:dev"
CNI_PLUGINS = "/usr/lib/cni"


def containerd_config(layout: Layout, mirrors: Path) -> str:
    """Return containerd's configuration, with standard paths and one registry for all image names."""
    images = "plugins.'io.containerd.cri.v1.images'"
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""\
version = 4
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = [
  'io.containerd.differ.v1.erofs',
  'io.containerd.image-verifier.v1.bindir',
  'io.containerd.internal.v1.opt',
  'io.containerd.internal.v1.tracing',
  'io.containerd.monitor.container.v1.restart',
  'io.containerd.nri.v1.nri',
  'io.containerd.snapshotter.v1.blockfile',
  'io.containerd.snapshotter.v1.erofs',
  'io.containerd.snapshotter.v1.native',
  'io.containerd.tracing.processor.v1.otlp',
]

[debug]
level = 'info'

[{images}]
max_concurrent_downloads = 4

[{images}.pinned_images]
sandbox = '{SANDBOX_IMAGE}'

[{images}.registry]
config_path = '{mirrors}'

[{runtime}]
# Build machines may lack CAP_SYS_RESOURCE. Without this setting, every sandbox would then fail.
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true

[{runtime}.cni]
bin_dirs = ['{CNI_PLUGINS}']
conf_dir = '/etc/cni/net.d'

[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[{runtime}.containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins.'io.containerd.metadata.v1.bolt']
# The data of a disposable cluster need not survive a power cut.
no_sync = true
"""


def mirror_config(registry: str) -> str:
    """Return the configuration that replaces all registries with the cluster's own, so that no other is contacted."""
    return f"""\
server = "http://{registry}"

[host."http://{registry}"]
capabilities = ["pull", "resolve"]
"""


def cni_config(node: NodeLayout) -> dict[str, object]:
    """Return the configuration of the pod network: a bridge in the node, with addresses from the node's own range."""
    return {
        "cniVersion": "1.0.0",
        "name": "drydock",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": node.pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet_config(
    node: NodeLayout, certificates: Certificates, containerd_socket: str
) -> dict[str, object]:
    """Return the kubelet's configuration: like that of common installers, but adapted to a small machine."""
    serving = str(certificates.path(f"kubelet-serving.{node.name}"))
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "2m0s"},
            "x509": {"clientCAFile": str(certificates.ca.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": serving,
        "tlsPrivateKeyFile": serving,
        "address": node.address,
        "healthzBindAddress": node.address,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # All nodes share one disk and one memory, so no node may evict pods because of them.
        "evictionHard": {
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": False,
        "maxParallelImagePulls": 3,
        "registryPullQPS": 0,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "eventRecordQPS": 100,
        "eventBurst": 200,
        # A power cut of a node is detected within half a minute instead of one minute.
        "nodeLeaseDurationSeconds": 20,
        "nodeStatusUpdateFrequency": "5s",
        "nodeStatusReportFrequency": "5m0s",
        "syncFrequency": "20s",
        "shutdownGracePeriod": "0s",
        "containerLogMaxSize": "20Mi",
        "containerLogMaxFiles": 2,
    }


def kube_proxy_config(layout: Layout, node: NodeLayout, kubeconfig: Path) -> dict[str, object]:
    """Return kube-proxy's configuration. It runs in a network namespace and leaves the host's conntrack limits unchanged."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": node.name,
        "mode": "iptables",
        "clusterCIDR": layout.pod_range,
        "bindAddress": node.address,
        "healthzBindAddress": f"{node.address}:10256",
        "metricsBindAddress": f"{node.address}:10249",
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "iptables": {"minSyncPeriod": "200ms", "syncPeriod": "30s"},
    }
