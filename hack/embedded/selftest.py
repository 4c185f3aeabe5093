"""Checks that a cluster works, by using it as its users do.

Each check is one function that returns on success and raises on failure. The checks
share a namespace with one web pod on each node.
"""

from __future__ import annotations

import json
import subprocess
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path

from . import cluster as clusters
from . import lifecycle, prerequisites, selftestpods
from .cluster import Cluster
from .controlplane import AUDITED_GROUP
from .errors import Failure
from .layout import KUBERNETES_SERVICE
from .progress import Progress
from .registry import PackedFile, TinyImage
from .selftestpods import NAMESPACE

_AUDITED_NAMESPACE = AUDITED_GROUP.rpartition(":")[2]


def run(name: str, whole_life: bool, progress: Progress) -> int:
    """Run all checks and return an exit code."""
    prerequisites.ensure(["selftest"], progress)
    if whole_life:
        return lifecycle.run(name, check, progress)
    return check(clusters.load(name, progress), progress)


def check(cluster: Cluster, progress: Progress) -> int:
    """Check one running cluster and return the number of failed checks."""
    bench = Bench(cluster)
    failed = 0
    cluster.kubectl("get", "--raw", "/readyz")
    bench.clean()
    try:
        for function in CHECKS:
            title = (function.__doc__ or function.__name__).splitlines()[0].rstrip(".")
            begun = time.monotonic()
            try:
                function(bench)
            except (Failure, AssertionError, OSError, subprocess.SubprocessError) as error:
                failed += 1
                progress.note(f"FAILED  {title} ({time.monotonic() - begun:.1f} s)\n{error}")
                progress.detail(traceback.format_exc())
            else:
                progress.note(f"ok      {title} ({time.monotonic() - begun:.1f} s)")
    finally:
        bench.clean()
    progress.note(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed")
    return failed


class Bench:
    """The cluster under test, with helpers that the checks share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes = [node.name for node in cluster.nodes]

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", NAMESPACE, *arguments, input=input)

    def apply(self, *objects: dict[str, object]) -> None:
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", input=json.dumps(document))

    def run_to_end(self, pod: dict[str, object]) -> str:
        """Create a pod, wait until it has succeeded, and return its log."""
        name = pod["metadata"]["name"]  # type: ignore[index]
        self.apply(pod)
        wanted = "jsonpath={.status.phase}=Succeeded"
        try:
            self.kubectl("wait", f"pod/{name}", f"--for={wanted}", "--timeout=60s")
        except Failure as failure:
            printed = self.cluster.kubectl("-n", NAMESPACE, "describe", f"pod/{name}", check=False)
            raise Failure(str(failure), printed) from failure
        return self.kubectl("logs", name)

    def web(self, number: int) -> str:
        """Return the name of the web pod on a node, given by its index."""
        return f"web-{self.nodes[number]}"

    def address(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "--output=jsonpath={.status.podIP}")

    def fetch_from(self, pod: str, address: str, port: int) -> str:
        """Send an HTTP request from a pod and return the response.

        This does not use the C library's resolver, which needs files that a static
        program in an empty image lacks.
        """
        script = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}"
        return self.kubectl("exec", pod, "--", "sh", "-c", script)

    def clean(self) -> None:
        for namespace in (NAMESPACE, _AUDITED_NAMESPACE):
            options = ("--ignore-not-found", "--wait=true", "--timeout=90s")
            # Drydock itself may be installed here, so delete only what the checks have created.
            if namespace == NAMESPACE:
                self.cluster.kubectl("delete", "namespace", namespace, *options, check=False)
            else:
                arguments = ("-n", namespace, "delete", "serviceaccount", "selftest", *options)
                self.cluster.kubectl(*arguments, check=False)


def image_by_ordinary_name(bench: Bench) -> None:
    """An image pushed to the registry runs on each node under an ordinary name."""
    busybox = PackedFile(Path("/bin/busybox").read_bytes(), 0o755)
    applets = ("cat", "env", "httpd", "ls", "mkdir", "nc", "printf", "sh", "sleep")
    files = {"bin/busybox": busybox, "www/index.html": PackedFile(b"hello from a volume\n")}
    files |= {f"bin/{applet}": PackedFile(link="busybox") for applet in applets}
    TinyImage(files, ["/bin/sh", "-c"]).push(bench.cluster.registry, "drydock/selftest", "latest")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    bench.cluster.kubectl("apply", "--filename=-", input=json.dumps(namespace))
    bench.apply(selftestpods.service(), *(selftestpods.web(node) for node in bench.nodes))
    bench.kubectl("wait", "pod", "--all", "--for=condition=Ready", "--timeout=90s")


def exec_and_logs(bench: Bench) -> None:
    """kubectl exec and kubectl logs work."""
    for number, node in enumerate(bench.nodes):
        printed = bench.kubectl("exec", bench.web(number), "--", "env")
        assert f"NODE={node}" in printed, printed
        printed = bench.kubectl("logs", bench.web(number))
        assert f"serving on {node}" in printed, printed


def port_forward(bench: Bench) -> None:
    """kubectl port-forward works."""
    argv = [str(bench.cluster.description["kubectl"]), "-n", NAMESPACE]
    argv += ["port-forward", f"pod/{bench.web(0)}", ":8080"]
    with subprocess.Popen(
        argv, env=bench.cluster.environment(), stdout=subprocess.PIPE, text=True
    ) as forward:
        try:
            assert forward.stdout
            port = forward.stdout.readline().split(":")[1].split()[0]
            assert bench.nodes[0] in _get(f"http://127.0.0.1:{port}/")
        finally:
            forward.terminate()


def image_volume(bench: Bench) -> None:
    """A pod mounts an image as a volume."""
    for node in bench.nodes:
        printed = bench.run_to_end(selftestpods.image_volume(node))
        assert printed == "hello from a volume\n", printed


def pod_to_api(bench: Bench) -> None:
    """A pod reaches the API server at its service address."""
    for number in range(len(bench.nodes)):
        # Only the API server responds to plain HTTP with this error.
        printed = bench.fetch_from(bench.web(number), KUBERNETES_SERVICE, 443)
        assert "HTTPS server" in printed, printed


def pod_to_pod(bench: Bench) -> None:
    """Pods on each node reach pods on all nodes, and services."""
    for number in range(len(bench.nodes)):
        for other, node in enumerate(bench.nodes):
            address = bench.address(bench.web(other))
            assert node in bench.fetch_from(bench.web(number), address, 8080)
    service = bench.kubectl("get", "service", "web", "--output=jsonpath={.spec.clusterIP}")
    for number in range(len(bench.nodes)):
        found: set[str] = set()
        deadline = time.monotonic() + 20
        # Each request may reach any node. All must be reached, including the pod's own node.
        while found != set(bench.nodes):
            assert time.monotonic() < deadline, f"{service} routed requests only to {found}"
            found.add(bench.fetch_from(bench.web(number), service, 80).split()[-1])


def host_to_pod(bench: Bench) -> None:
    """The host and the API server reach pods, as webhooks require."""
    for number, node in enumerate(bench.nodes):
        assert node in _get(f"http://{bench.address(bench.web(number))}:8080/")
    path = f"/api/v1/namespaces/{NAMESPACE}/services/http:web:80/proxy/"
    printed = bench.kubectl("get", "--raw", path)
    assert printed.strip() in bench.nodes, printed


def seccomp_profile(bench: Bench) -> None:
    """A pod uses a seccomp profile from the standard path on its node."""
    profile = json.dumps(
        {
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [
                {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}
            ],
        }
    )
    for node in bench.nodes:
        target = "/var/lib/kubelet/seccomp/selftest.json"
        bench.cluster.in_node(node, ["sh", "-c", f"cat > {target}"], input=profile)
        printed = bench.run_to_end(selftestpods.seccomp(node))
        assert "No space left on device" in printed, printed
        bench.cluster.in_node(node, ["rm", target])


def host_paths(bench: Bench) -> None:
    """Host paths are separate on each node, except for the shared folder."""
    for node in bench.nodes:
        bench.run_to_end(selftestpods.host_path(node))
    for node in bench.nodes:
        own = bench.cluster.in_node(node, ["ls", "/var/lib/drydock/selftest"]).split()
        assert own == [node], own
        both = bench.cluster.in_node(node, ["ls", "/var/lib/drydock-shared/selftest"]).split()
        assert both == sorted(bench.nodes), both
    for node in bench.nodes:
        folders = ["/var/lib/drydock/selftest", "/var/lib/drydock-shared/selftest"]
        bench.cluster.in_node(node, ["rm", "-rf", *folders])


def kvm_visibility(bench: Bench) -> None:
    """Privileged pods see /dev/kvm only if it was requested."""
    wanted = bench.cluster.layout.settings.kvm and Path("/dev/kvm").exists()
    for node in bench.nodes:
        devices = bench.run_to_end(selftestpods.privileged_read_of_dev(node)).split()
        assert "null" in devices and ("kvm" in devices) == wanted, devices


def audit_log(bench: Bench) -> None:
    """The audit log has requests of Drydock's service accounts, and no others."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": _AUDITED_NAMESPACE},
    }
    if not bench.kubectl("get", "namespace", _AUDITED_NAMESPACE, "--ignore-not-found"):
        bench.apply(namespace)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "selftest", "namespace": _AUDITED_NAMESPACE},
    }
    bench.cluster.kubectl("apply", "--filename=-", input=json.dumps(account))
    token = bench.cluster.kubectl("-n", _AUDITED_NAMESPACE, "create", "token", "selftest").strip()
    certificate = bench.cluster.layout.certificates / "ca.crt"
    anonymous = ("--kubeconfig=/dev/null", f"--server={bench.cluster.layout.server}")
    identity = (f"--certificate-authority={certificate}", f"--token={token}")
    bench.cluster.kubectl(*anonymous, *identity, "get", "--raw", "/version")
    user = f"system:serviceaccount:{_AUDITED_NAMESPACE}:selftest"
    log = Path(str(bench.cluster.description["audit_log"]))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    mine = [entry for entry in entries if entry["user"]["username"] == user]
    assert any(entry["requestURI"].startswith("/version") for entry in mine), mine
    assert all(entry["stage"] != "RequestReceived" for entry in entries)
    strangers = [entry for entry in entries if AUDITED_GROUP not in entry["user"]["groups"]]
    assert not strangers, strangers[0]


def parts_restart(bench: Bench) -> None:
    """API server, containerd and kubelet restart without affecting pods."""
    query = ("get", "pods", "--output=jsonpath={range .items[*]}{.metadata.name} "
             "{.status.containerStatuses[*].containerID}{\"\\n\"}{end}")
    before = bench.kubectl(*query)
    node = bench.cluster.nodes[0]
    for part in ("kube-apiserver", node.part("containerd"), node.part("kubelet")):
        old = bench.cluster.pid(part)
        bench.cluster.restart_process(part)
        assert bench.cluster.pid(part) not in (None, old), part
    assert bench.kubectl("exec", bench.web(0), "--", "ls", "/www").strip() == "index.html"
    after = bench.kubectl(*query)
    assert after == before, f"before:\n{before}after:\n{after}"


def power_cut(bench: Bench) -> None:
    """A node and its pods run again after a power cut."""
    node = bench.nodes[-1]
    bench.apply(selftestpods.restarting(node))
    bench.kubectl("wait", f"pod/restarting-{node}", "--for=condition=Ready", "--timeout=60s")
    old = bench.cluster.pid(node)
    bench.cluster.restart_process(node)
    assert bench.cluster.pid(node) not in (None, old)
    wanted = "jsonpath={.status.containerStatuses[0].restartCount}=1"
    bench.kubectl("wait", f"pod/restarting-{node}", f"--for={wanted}", "--timeout=60s")
    bench.kubectl("wait", f"pod/restarting-{node}", "--for=condition=Ready", "--timeout=60s")
    printed = bench.kubectl("exec", f"restarting-{node}", "--", "env")
    assert f"NODE={node}" in printed, printed


def _get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return response.read().decode()


CHECKS: tuple[Callable[[Bench], None], ...] = (
    image_by_ordinary_name,
    exec_and_logs,
    port_forward,
    image_volume,
    pod_to_api,
    pod_to_pod,
    host_to_pod,
    seccomp_profile,
    host_paths,
    kvm_visibility,
    audit_log,
    parts_restart,
    power_cut,
)
