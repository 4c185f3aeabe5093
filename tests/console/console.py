"""Helpers for the tests: a console as a user starts it, a browser, and a connection to the API server that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

# Timeout of each wait for the cluster: a guest migrates within seconds, but the machine may be busy.
PATIENCE_SECONDS = 120
expect.set_options(timeout=PATIENCE_SECONDS * 1000)
NAMESPACE = "console-tests"
IMAGE = "kubevirt/fedora-cloud-container-disk-demo:latest"
# A guest without an operating system, which starts immediately.
BARE_IMAGE = "localhost/drydock/bare-guest:dev"


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True) -> str:
    """Run kubectl as the administrator and return its output. With `check`, a failure raises AssertionError."""
    done = subprocess.run(
        [os.environ["DRYDOCK_TEST_KUBECTL"], *arguments],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS + 30,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def got(*arguments: str) -> Any:
    """Run `kubectl get` and return the parsed JSON."""
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def wait(*arguments: str) -> None:
    """Wait for a condition of virtual machine instances with `kubectl wait`, which uses a watch."""
    kubectl("wait", "-n", NAMESPACE, f"--timeout={PATIENCE_SECONDS}s", *arguments)


def until(what: str, holds: Callable[[], Any]) -> Any:
    """Poll `holds`, which may depend on any object, and return its first true result. A timeout raises AssertionError."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if result := holds():
            return result
        time.sleep(0.2)
    raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}")


def machine(
    name: str, strategy: str = "LiveMigrate", node: str | None = None, image: str = BARE_IMAGE
) -> dict[str, Any]:
    """Return the manifest of a small virtual machine; with `node`, it can run only on that node."""
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 10,
        "evictionStrategy": strategy,
        "domain": {
            "resources": {"requests": {"memory": "96Mi"}},
            "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
        },
        "volumes": [{"name": "root", "containerDisk": {"image": image, "imagePullPolicy": "IfNotPresent"}}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    }


def apply(*objects: dict[str, Any]) -> None:
    """Create or update objects."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


class Console:
    """The process of `kubectl drydock console`. Ctrl-C ends it."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [os.environ["DRYDOCK_CONSOLE"], "console", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            self.close()
            raise AssertionError("the console printed no link")
        self.link = self._process.stdout.readline().strip()
        self.address = self.link.partition("/#")[0]

    def close(self) -> None:
        """End the process with SIGINT, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection:
    """A TCP proxy to the API server whose connections can be cut."""

    def __init__(self) -> None:
        self._config = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
        cluster = self._config["clusters"][0]["cluster"]
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        self._server = (host, int(port or 443))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = False
        cluster["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        cluster["tls-server-name"] = host
        self._file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(self._config, self._file)
        self._file.flush()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def kubeconfig(self) -> str:
        """The path of a kubeconfig that uses this proxy."""
        return self._file.name

    def cut(self) -> None:
        """Close all connections, and reject new ones."""
        with self._lock:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        """Forward new connections again."""
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        """Close the proxy permanently."""
        self.cut()
        self._listener.close()
        self._file.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._server)
                self._open += [near, far]
            threading.Thread(target=_both_ways, args=(near, far), daemon=True).start()


def _both_ways(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
        back.start()
        _pass_on(near, far)
        back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Case(unittest.TestCase):
    """A test with a browser. Its virtual machines and maintenances are deleted before the next test."""

    browser: Browser
    nodes: list[str]
    # The name of a virtual machine that the tests of a class share, since each takes a quarter of a minute to start and to stop.
    shared = ""

    @classmethod
    def setUpClass(cls) -> None:
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        # The tests run as root in a container, where Chromium's own sandbox does not work.
        cls.browser = playwright.chromium.launch(
            executable_path=os.environ["DRYDOCK_TEST_CHROMIUM"], args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        cls.addClassCleanup(cls.browser.close)
        cls.nodes = [node["metadata"]["name"] for node in got("nodes")["items"]]
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        cls.addClassCleanup(delete_machines)

    def setUp(self) -> None:
        self.errors: list[str] = []
        self.addCleanup(self._clean)

    def _clean(self) -> None:
        kubectl("delete", "nodemaintenances.nodemaintenance.medik8s.io", "--all", "--timeout=60s")
        delete_machines(but=self.shared)
        # All replicas of Drydock's controller may have been on a node in maintenance: wait until requests are admitted again.
        until("admission", lambda: kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(machine("admitted")), check=False))

    def console(self, *arguments: str) -> Console:
        """Start a console that ends with the test."""
        console = Console(*arguments)
        self.addCleanup(console.close)
        return console

    def context(self, **options: Any) -> BrowserContext:
        """Create an isolated browser context that is closed at the end of the test."""
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.addCleanup(context.close)
        return context

    def page(self, console: Console, path: str = "/nodes", context: BrowserContext | None = None, **options: Any) -> Page:
        """Open a tab that shows a path of the console. An error in the page's script fails the test."""
        page = (context or self.context(**options)).new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"a dialog of the browser: {dialog.message}"))
        page.goto(console.link)
        page.wait_for_selector("#summary")
        if path != "/nodes":
            page.goto(console.address + path)
            page.wait_for_selector("main h1")
        self.addCleanup(self._picture, page)
        return page

    def _picture(self, page: Page) -> None:
        failed = self._outcome and any(error for _, error in getattr(self._outcome, "errors", []))  # type: ignore[attr-defined]
        if failed or self._has_failed():
            path = Path(tempfile.gettempdir()) / f"drydock-{self.id().rpartition('.')[2]}.png"
            page.screenshot(path=path)
            print(f"picture of the failure: {path}")
        if self.errors and not self._has_failed():
            raise AssertionError(f"errors in the browser: {self.errors}")

    def _has_failed(self) -> bool:
        result = self._outcome.result  # type: ignore[attr-defined]
        return any(test is self for test, _ in [*result.failures, *result.errors])

    def running(self, *manifests: dict[str, Any]) -> None:
        """Start virtual machines, and wait until each is running and live migratable."""
        apply(*manifests)
        for manifest in manifests:
            instance = f"vmi/{manifest['metadata']['name']}"
            for what in ("create", "jsonpath={.status.phase}=Running", "condition=LiveMigratable"):
                wait(instance, f"--for={what}")


def controllers_apart() -> bool:
    """Return whether Drydock's controller has two replicas that are ready and on different nodes.

    If not, the leader will move one of them, and the streams that this replica serves will end.
    """
    pods = got("pods", "-n", "drydock", "-l", "app.kubernetes.io/name=drydock-controller")["items"]
    ready = [pod for pod in pods if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])]
    return len(pods) == len(ready) == len({pod["spec"]["nodeName"] for pod in ready}) == 2


def delete_machines(but: str = "") -> None:
    """Delete all virtual machines except `but`, and wait until their instances are deleted."""

    def left(kind: str) -> list[str]:
        names = (one["metadata"]["name"] for one in got(kind, "-n", NAMESPACE)["items"])
        return [f"{kind}/{name}" for name in names if name != but]

    if machines := left("vm"):
        kubectl("delete", *machines, "-n", NAMESPACE, "--timeout=60s")
    if instances := left("vmi"):
        wait(*instances, "--for=delete")


def node_of(name: str) -> str:
    """Return the node on which a virtual machine runs."""
    return str(got("vmi", name, "-n", NAMESPACE)["status"]["nodeName"])


@contextlib.contextmanager
def granted(name: str, subject: dict[str, Any], *rules: dict[str, Any]) -> Iterator[str]:
    """Grant a subject these rights in the cluster and no others, with a ClusterRole of this name, during the context."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": list(rules)}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [subject],
    }
    apply(role, binding)
    try:
        yield name
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", name)


def user(name: str, *rules: dict[str, Any]) -> contextlib.AbstractContextManager[str]:
    """Grant a user these rights in the cluster and no others, until the end of the context."""
    return granted(name, {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}, *rules)


# Read access to everything that the console shows.
READ = {
    "apiGroups": ["", "policy", "kubevirt.io", "drydock.dev", "hco.kubevirt.io", "nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io"],
    "resources": ["*"],
    "verbs": ["list", "watch"],
}
