"""The configuration files of a node's programs, as data."""

from __future__ import annotations

from pathlib import Path

from .certificates import Certificates
from .layout import Layout, NodeLayout

SANDBOX_IMAGE = "localhost/drydock/pause:dev"
CNI_PLUGINS = "/usr/lib/cni"


def containerd_config(layout: Layout, mirrors: Path) -> str:
    """containerd's own file: the ordinary paths, one registry for every name."""
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
# Build machines may lack CAP_SYS_RESOURCE, and every sandbox would die of it.
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
# A cluster that is thrown away needs no disk that survives a power cut.
no_sync = true
"""


def mirror_config(registry: str) -> str:
    """Return the configuration by which the cluster's registry stands for all others, and no other is queried."""
    return f"""\
server = "http://{registry}"

[host."http://{registry}"]
capabilities = ["pull", "resolve"]
"""


def cni_config(node: NodeLayout) -> dict[str, object]:
    """The pod network: a bridge in the node, addresses of the node's own range."""
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
    """A kubelet as installers set it up, but patient with a small machine."""
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
        # All nodes share one disk and one memory, so no node may judge by them.
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
        # A node that lost its power is noticed in half a minute, not in one.
        "nodeLeaseDurationSeconds": 20,
        "nodeStatusUpdateFrequency": "5s",
        "nodeStatusReportFrequency": "5m0s",
        "syncFrequency": "20s",
        "shutdownGracePeriod": "0s",
        "containerLogMaxSize": "20Mi",
        "containerLogMaxFiles": 2,
    }


def kube_proxy_config(layout: Layout, node: NodeLayout, kubeconfig: Path) -> dict[str, object]:
    """kube-proxy in a network namespace, where the machine's own limits are not ours."""
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
