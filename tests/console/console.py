"""A console as a user starts it, a browser, and a connection to the API server that can be cut."""

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

# For whatever the cluster does meanwhile: a guest moves within seconds, but the machine may be busy.
PATIENCE_SECONDS = 120
expect.set_options(timeout=PATIENCE_SECONDS * 1000)
NAMESPACE = "console-tests"
IMAGE = "kubevirt/fedora-cloud-container-disk-demo:latest"
# A guest without an operating system, which starts at once.
BARE_IMAGE = "localhost/drydock/bare-guest:dev"


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True) -> str:
    """What kubectl prints as the administrator."""
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
    """The same as JSON."""
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def wait(*arguments: str) -> None:
    """Wait for something of virtual machine instances, by a watch."""
    kubectl("wait", "-n", NAMESPACE, f"--timeout={PATIENCE_SECONDS}s", *arguments)


def until(what: str, holds: Callable[[], Any]) -> Any:
    """The first true result; the value is polled, because it may be on any object."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if result := holds():
            return result
        time.sleep(0.2)
    raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}")


def machine(
    name: str, strategy: str = "LiveMigrate", node: str | None = None, image: str = BARE_IMAGE
) -> dict[str, Any]:
    """The manifest of a small virtual machine, for one node if that is named."""
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
    """Create objects, or change them."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


class Console:
    """The process of `kubectl drydock console`, ended by Ctrl-C."""

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
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection:
    """Passes bytes on to the API server, until it is cut."""

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
        """A kubeconfig that goes through it."""
        return self._file.name

    def cut(self) -> None:
        """Nothing comes through any more."""
        with self._lock:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        """New connections come through again."""
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        """For good."""
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
    """A test with a browser; its virtual machines and maintenances are gone before the next."""

    browser: Browser
    nodes: list[str]
    # A virtual machine that the tests of a class share, since each takes a quarter of a minute to start and to end.
    shared = ""

    @classmethod
    def setUpClass(cls) -> None:
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        # The tests run as root in a container, where Chromium has no sandbox of its own.
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
        # A node in maintenance may have had all replicas of Drydock's controller.
        until("admission", lambda: kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(machine("admitted")), check=False))

    def console(self, *arguments: str) -> Console:
        """A console that ends with the test."""
        console = Console(*arguments)
        self.addCleanup(console.close)
        return console

    def context(self, **options: Any) -> BrowserContext:
        """A browser that shares nothing with others, and ends with the test."""
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.addCleanup(context.close)
        return context

    def page(self, console: Console, path: str = "/nodes", context: BrowserContext | None = None, **options: Any) -> Page:
        """A tab that shows a path of the console. An error of its script fails the test."""
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
        """Start virtual machines, and wait until it is known whether each can move."""
        apply(*manifests)
        for manifest in manifests:
            instance = f"vmi/{manifest['metadata']['name']}"
            for what in ("create", "jsonpath={.status.phase}=Running", "condition=LiveMigratable"):
                wait(instance, f"--for={what}")


def controllers_apart() -> bool:
    """Whether each ready replica of Drydock's controller is on a node of its own. If not, the leader will move one, and streams
    that it serves will end."""
    pods = got("pods", "-n", "drydock", "-l", "app.kubernetes.io/name=drydock-controller")["items"]
    ready = [pod for pod in pods if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])]
    return len(pods) == len(ready) == len({pod["spec"]["nodeName"] for pod in ready}) == 2


def delete_machines(but: str = "") -> None:
    """Delete all virtual machines, or all but one, and wait until their guests have ended."""

    def left(kind: str) -> list[str]:
        names = (one["metadata"]["name"] for one in got(kind, "-n", NAMESPACE)["items"])
        return [f"{kind}/{name}" for name in names if name != but]

    if machines := left("vm"):
        kubectl("delete", *machines, "-n", NAMESPACE, "--timeout=60s")
    if instances := left("vmi"):
        wait(*instances, "--for=delete")


def node_of(name: str) -> str:
    """The node that a virtual machine runs on."""
    return str(got("vmi", name, "-n", NAMESPACE)["status"]["nodeName"])


@contextlib.contextmanager
def granted(name: str, subject: dict[str, Any], *rules: dict[str, Any]) -> Iterator[str]:
    """A subject with these rights in the cluster and no others, by a role of this name."""
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
    """A user with these rights in the cluster and no others."""
    return granted(name, {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}, *rules)


# All that the console shows.
READ = {
    "apiGroups": ["", "policy", "kubevirt.io", "drydock.dev", "hco.kubevirt.io", "nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io"],
    "resources": ["*"],
    "verbs": ["list", "watch"],
}
