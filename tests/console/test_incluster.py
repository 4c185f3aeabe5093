"""Tests the console in the cluster: real pods, tokens, different users, a proxy that adds tokens, and the loss of a pod."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from console import NAMESPACE, PATIENCE_SECONDS, READ, Case, apply, got, granted, kubectl, machine, node_of, until
from playwright.sync_api import Page, Route, expect

DRYDOCK = "drydock"
SELECTOR = "app.kubernetes.io/name=drydock-console"
SECRET = "drydock-console-certificate"
# Rights that are needed to start and stop maintenance, in addition to read access.
MAINTAIN = {
    "apiGroups": ["nodemaintenance.medik8s.io", ""],
    "resources": ["nodemaintenances", "nodes"],
    "verbs": ["get", "create", "delete"],
}


class Forward:
    """A `kubectl port-forward` from a local port to the Service or to a pod."""

    def __init__(self, target: str) -> None:
        self._process = subprocess.Popen(
            [os.environ["DRYDOCK_TEST_KUBECTL"], "-n", DRYDOCK, "port-forward", target, ":443" if target.startswith("svc/") else ":8443"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            self.close()
            raise AssertionError(f"no port is forwarded to {target}")
        line = self._process.stdout.readline()
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", line).group(1))  # type: ignore[union-attr]
        self.address = f"https://localhost:{self.port}"

    def close(self) -> None:
        """Stop the port forwarding."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=30)


@contextlib.contextmanager
def account(name: str, *rules: dict[str, Any]) -> Iterator[str]:
    """Create a ServiceAccount with these rights in the cluster, and delete it at the end of the context."""
    apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}})
    try:
        with granted(name, {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}, *rules):
            yield name
    finally:
        kubectl("delete", "serviceaccount", name, "-n", NAMESPACE, "--ignore-not-found")


def token(name: str) -> str:
    """Create and return a token of a ServiceAccount."""
    return kubectl("create", "token", name, "-n", NAMESPACE).strip()


def ready_pods() -> list[str]:
    """Return the pods of the console that are ready and not being deleted."""
    pods = got("pods", "-n", DRYDOCK, "-l", SELECTOR)["items"]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(one["type"] == "Ready" and one["status"] == "True" for one in pod.get("status", {}).get("conditions", []))
    ]


class InCluster(Case):
    begun_on: set[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        manifests = os.environ["DRYDOCK_TEST_CONSOLE_MANIFESTS"]
        kubectl("apply", "-k", manifests)
        cls.addClassCleanup(kubectl, "delete", "-k", manifests, "--ignore-not-found", "--timeout=60s")
        until("two pods of the console", lambda: len(ready_pods()) == 2)
        cls.begun_on = {pod["spec"]["nodeName"] for pod in got("pods", "-n", DRYDOCK, "-l", SELECTOR)["items"]}

    def forward(self, target: str = "svc/drydock-console") -> Forward:
        """Forward a port until the end of the test."""
        forward = Forward(target)
        self.addCleanup(forward.close)
        return forward

    def open(self, address: str, path: str = "/nodes", **options: Any) -> Page:
        """Open a tab without a signed-in user. Chromium does not know the authority; another test verifies the certificate."""
        page = self.context(ignore_https_errors=True, **options).new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address + path)
        self.addCleanup(self._picture, page)
        return page

    def sign_in(self, page: Page, secret: str) -> None:
        """Enter a token and sign in."""
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Sign in").click()

    def test_pods_have_no_right_no_token_and_no_privilege(self) -> None:
        for right in ("get pods", "list nodes", "impersonate users", "get secrets"):
            verb, resource = right.split()
            user = f"system:serviceaccount:{DRYDOCK}:drydock-console"
            allowed = kubectl("auth", "can-i", verb, resource, f"--as={user}", "-n", DRYDOCK, check=False).strip()
            self.assertEqual(allowed, "no", right)
        pods = got("pods", "-n", DRYDOCK, "-l", SELECTOR)["items"]
        self.assertEqual(len(self.begun_on), 2, "the pods are spread over nodes")
        for pod in pods:
            mounts = [mount["mountPath"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]]
            self.assertFalse([path for path in mounts if "serviceaccount" in path])
            self.assertFalse([volume for volume in pod["spec"]["volumes"] if "projected" in volume])

    def test_certificate_is_for_the_service_and_by_the_authority(self) -> None:
        forward = self.forward()
        data = got("secret", SECRET, "-n", DRYDOCK)["data"]
        authority = base64.b64decode(data["ca.crt"]).decode()
        trusts = ssl.create_default_context(cadata=authority)
        for name in ("localhost", "drydock-console.drydock.svc"):
            with socket.create_connection(("127.0.0.1", forward.port)) as plain, trusts.wrap_socket(plain, server_hostname=name) as tls:
                self.assertIn(tls.version(), ("TLSv1.2", "TLSv1.3"))
        with socket.create_connection(("127.0.0.1", forward.port)) as plain, self.assertRaises(ssl.SSLCertVerificationError):
            trusts.wrap_socket(plain, server_hostname="drydock-webhooks.drydock.svc")
        # The webhooks have another certificate authority.
        webhooks = base64.b64decode(got("secret", "drydock-webhook-certificates", "-n", DRYDOCK)["data"]["ca.crt"])
        self.assertNotEqual(webhooks.decode(), authority)

    def test_maintenance_is_started_and_stopped_with_a_pasted_token(self) -> None:
        self.running(machine("mover"))
        node = node_of("mover")
        with account("console-editor", READ, MAINTAIN) as name:
            # The other pod is evicted together with the virtual machine.
            stays = next(pod for pod in ready_pods() if got("pod", pod, "-n", DRYDOCK)["spec"]["nodeName"] != node)
            page = self.open(self.forward(f"pod/{stays}").address)
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            self.assertNotIn(node, page.content())
            secret = token(name)
            self.sign_in(page, f"  {secret}\n")
            row = page.locator(f"tr[id='node/{node}']")
            expect(row).to_contain_text("Open")
            expect(page.locator("#cluster-name")).to_contain_text(f"as system:serviceaccount:{NAMESPACE}:{name}")
            expect(page.get_by_role("button", name="Link for another browser")).to_have_count(0)
            self.assertNotIn(secret, page.content() + page.url)
            self.assertEqual(page.context.cookies(), [])
            page.get_by_label(f"Options menu for {node}").click()
            page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance").click()
            window = page.get_by_role("dialog", name=f"Start Maintenance on {node}")
            expect(window).to_contain_text("1 virtual machine moves")
            window.get_by_role("button", name="Start Maintenance").click()
            expect(page.get_by_text(f"Maintenance of {node} started.")).to_be_visible()
            expect(row).to_contain_text("safe to switch off")
            # The session belongs to the tab.
            page.reload()
            page.get_by_label(f"Options menu for {node}").click()
            page.locator(f"[id='menu/{node}']").get_by_role("button", name="Stop Maintenance").click()
            window = page.get_by_role("dialog", name=f"Stop Maintenance on {node}")
            window.get_by_role("button", name="Stop Maintenance").click()
            expect(row).to_contain_text("Open")
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            expect(page.locator("#cluster-name")).to_have_count(0)
            self.assertIsNone(page.evaluate("sessionStorage.getItem('drydock-session')"))
            page.reload()
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    def test_users_see_the_objects_that_each_may_read(self) -> None:
        nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
        node = self.nodes[0]
        forward = self.forward()
        with account("console-reader", READ) as reader, account("console-nodes", nodes) as few:
            first, second = self.open(forward.address), self.open(forward.address)
            self.sign_in(first, token(reader))
            self.sign_in(second, token(few))
            expect(first.locator("#nodes")).to_contain_text(node)
            expect(first.locator("#unread")).to_have_count(0)
            expect(second.locator("#nodes")).to_contain_text(node)
            expect(second.locator("#unread")).to_contain_text("virtualmachineinstances (forbidden)")
            expect(second.locator("#cluster-name")).to_contain_text(f":{few}")
            first.get_by_label(f"Options menu for {node}").click()
            menu = first.locator(f"[id='menu/{node}']")
            expect(menu.get_by_role("button", name="Start Maintenance")).to_be_disabled()
            expect(menu).to_contain_text("you lack the right to create nodemaintenances of nodemaintenance.medik8s.io")

    def test_wrong_and_expired_tokens_are_refused_with_the_reason(self) -> None:
        page = self.open(self.forward().address)
        self.sign_in(page, "guess")
        expect(page.locator("#refused")).to_contain_text("the API server does not accept the token")
        claims = base64.urlsafe_b64encode(json.dumps({"exp": 1700000000}).encode()).decode().rstrip("=")
        self.sign_in(page, f"e30.{claims}.x")
        expect(page.locator("#refused")).to_contain_text("it expired at 2023-11-14 22:13:20 UTC")
        self.assertNotIn(self.nodes[0], page.content())
        expect(page.get_by_role("button", name="Sign out")).to_have_count(0)

    def test_open_page_ends_when_the_token_is_revoked(self) -> None:
        with account("console-revoked", READ) as name:
            page = self.open(self.forward().address)
            self.sign_in(page, token(name))
            expect(page.locator("#nodes")).to_contain_text(self.nodes[0])
            kubectl("delete", "serviceaccount", name, "-n", NAMESPACE)
            expect(page.locator("#refused")).to_contain_text("its ServiceAccount was deleted")
            self.assertNotIn(self.nodes[0], page.content())
            expect(page.locator("#cluster-name")).to_have_count(0)

    def test_token_that_a_proxy_adds_signs_in_but_no_other_site(self) -> None:
        with account("console-proxied", READ) as name:
            forward, secret = self.forward(), token(name)
            page = self.context(ignore_https_errors=True).new_page()

            def add(route: Route) -> None:
                route.continue_(headers={**route.request.headers, "authorization": f"Bearer {secret}"})

            page.route("**/*", add)
            page.goto(forward.address)
            expect(page.locator("#nodes")).to_contain_text(self.nodes[0])
            expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
            self.assertIsNone(page.evaluate("sessionStorage.getItem('drydock-session')"))
        # Requests that another site can make the browser send, with the token that the proxy would add.
        own = {"Authorization": f"Bearer {secret}", "X-Drydock-Session": "token"}
        for headers, expected in (
            ({"Authorization": f"Bearer {secret}"}, 403),
            ({**own, "Sec-Fetch-Site": "cross-site"}, 403),
            ({**own, "Origin": "https://evil.example"}, 403),
            ({**own, "Host": "evil.example"}, 421),
            ({"X-Drydock-Session": "token"}, 401),
        ):
            self.assertEqual(self.status(forward.port, "/api/live?path=/nodes", headers), expected, headers)
        self.assertEqual(self.status(forward.port, "/nodes", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}), 200)
        self.assertEqual(self.status(forward.port, "/api/start", own, "OPTIONS"), 405)

    def status(self, port: int, path: str, headers: dict[str, str], method: str = "GET") -> int:
        """Send a request, verify the certificate, and return the HTTP status."""
        authority = base64.b64decode(got("secret", SECRET, "-n", DRYDOCK)["data"]["ca.crt"]).decode()
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=ssl.create_default_context(cadata=authority))
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            return connection.getresponse().status

    def test_either_pod_serves_a_token_and_one_may_be_lost(self) -> None:
        with account("console-two", READ) as name:
            secret = token(name)
            lost, kept = ready_pods()
            pages = []
            for pod in (lost, kept):
                page = self.open(self.forward(f"pod/{pod}").address)
                self.sign_in(page, secret)
                expect(page.locator("#nodes")).to_contain_text(self.nodes[0])
                pages.append(page)
            kubectl("delete", "pod", lost, "-n", DRYDOCK, "--wait=false")
            # The forwarded port ends with its pod; a Service would route to the other pod.
            expect(pages[0].locator("#connection")).to_contain_text("No connection to the console")
            expect(pages[1].locator("#connection")).to_be_hidden()
            page = self.open(self.forward().address)
            self.sign_in(page, secret)
            expect(page.locator("#nodes")).to_contain_text(self.nodes[0])
            until("two pods of the console", lambda: len(ready_pods()) == 2 and lost not in ready_pods())

    def test_certificate_of_the_user_is_served_instead(self) -> None:
        made = Path(self.enterContext(tempfile.TemporaryDirectory()))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
             "-subj", "/CN=own", "-addext", "subjectAltName=DNS:console.example.org",
             "-keyout", str(made / "tls.key"), "-out", str(made / "tls.crt")],
            check=True, capture_output=True,
        )
        kubectl("-n", DRYDOCK, "create", "secret", "tls", "drydock-console-tls", f"--cert={made}/tls.crt", f"--key={made}/tls.key")
        self.addCleanup(kubectl, "-n", DRYDOCK, "delete", "secret", "drydock-console-tls")
        forward = self.forward()
        trusts = ssl.create_default_context(cafile=str(made / "tls.crt"))

        def is_served() -> bool:
            with socket.create_connection(("127.0.0.1", forward.port)) as plain, contextlib.suppress(ssl.SSLError):
                trusts.wrap_socket(plain, server_hostname="console.example.org").close()
                return True
            return False

        until("the user's certificate to be served", is_served)

    def test_sign_in_page_has_no_finding_and_works_by_keyboard(self) -> None:
        forward = self.forward()
        with account("console-keyboard", READ) as name:
            for scheme in ("light", "dark"):
                page = self.open(forward.address, viewport={"width": 320, "height": 800}, color_scheme=scheme)
                expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
                if folder := os.environ.get("DRYDOCK_TEST_PICTURES"):
                    page.screenshot(path=Path(folder) / f"sign-in-{scheme}-320.png")
                found = Axe().run(page)
                self.assertEqual(found.violations_count, 0, found.generate_report())
                beside = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                self.assertEqual(beside, 0)
            page.get_by_label("Token").focus()
            page.keyboard.insert_text(token(name))
            page.keyboard.press("Enter")
            expect(page.locator("#nodes")).to_contain_text(self.nodes[0])


if __name__ == "__main__":
    unittest.main()
