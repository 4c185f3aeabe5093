"""Tests links, sessions, rights, markup in names, and an unreachable API server."""

from __future__ import annotations

import re
import unittest
import urllib.error
import urllib.request

from console import NAMESPACE, READ, Case, Connection, apply, got, kubectl, machine, user
from playwright.sync_api import expect

CREATE = {"apiGroups": ["nodemaintenance.medik8s.io"], "resources": ["nodemaintenances"], "verbs": ["create"]}
NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}


class Safety(Case):
    def test_link_works_once_and_a_tab_without_one_shows_nothing(self) -> None:
        console = self.console()
        page = self.page(console)
        self.assertNotIn("key", page.url)
        self.assertEqual(page.context.cookies(), [])
        other = self.context().new_page()
        other.goto(console.link)
        expect(other.locator("#notices")).to_contain_text("this link was already used")
        expect(other.locator("main")).to_contain_text("Open the link from the terminal")
        other.goto(console.address + "/nodes")
        expect(other.locator("main")).to_contain_text("Open the link from the terminal")
        self.assertNotIn(self.nodes[0], other.content())
        # The tab with the session keeps working.
        page.reload()
        expect(page.locator("#nodes")).to_contain_text(self.nodes[0])

    def test_other_names_and_other_sites_are_refused(self) -> None:
        console = self.console()
        for headers, path, expected in (
            ({"Host": "evil.example"}, "/", 421),
            ({"Origin": "http://evil.example"}, "/", 403),
            ({"Sec-Fetch-Site": "cross-site"}, "/", 403),
            ({}, "/api/live?path=/nodes", 403),
            ({"X-Drydock-Session": "0" * 64}, "/api/live?path=/nodes", 403),
            ({}, "/api/v1/secrets", 403),
        ):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(console.address + path, headers=headers), timeout=30)
            self.assertEqual(refused.exception.code, expected, (headers, path))

    def test_user_with_read_access_only_sees_the_missing_rights(self) -> None:
        with user("console-viewer", READ) as name:
            console = self.console("--as", name)
            page = self.page(console)
            node = self.nodes[0]
            page.get_by_label(f"Options menu for {node}").click()
            menu = page.locator(f"[id='menu/{node}']")
            expect(menu.get_by_role("button", name="Start Maintenance")).to_be_disabled()
            expect(menu).to_contain_text("you lack the right to create nodemaintenances of nodemaintenance.medik8s.io")
            expect(page.locator("#cluster-name")).to_contain_text("as console-viewer")

    def test_right_that_is_taken_away_refuses_in_the_dialog(self) -> None:
        with user("console-starter", READ, CREATE, NODES) as name:
            console = self.console("--as", name)
            page = self.page(console)
            node = self.nodes[0]
            page.get_by_label(f"Options menu for {node}").click()
            page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance").click()
            start = page.get_by_role("dialog").get_by_role("button", name="Start Maintenance")
            expect(start).to_be_enabled()
            kubectl("patch", "clusterrole", name, "--type=json", "-p", '[{"op": "remove", "path": "/rules/1"}]')
            start.click()
            # The page may notice the missing right before the request is sent: then the button is disabled instead.
            refused = page.get_by_role("dialog").locator(".error, .banner").filter(has_text="create")
            expect(refused.first).to_be_visible()
            self.assertEqual(got("nodemaintenances.nodemaintenance.medik8s.io")["items"], [])

    def test_user_without_pod_access_sees_the_omitted_parts(self) -> None:
        rules = {**READ, "apiGroups": [group for group in READ["apiGroups"] if group]}
        some = {"apiGroups": [""], "resources": ["nodes", "persistentvolumeclaims"], "verbs": ["list", "watch"]}
        with user("console-without-pods", rules, some) as name:
            page = self.page(self.console("--as", name))
            expect(page.locator("#unread")).to_contain_text("pods (forbidden)")
            expect(page.locator("#nodes")).to_contain_text(self.nodes[0])

    def test_markup_in_names_and_messages_is_text(self) -> None:
        text = "<img src=x onerror=alert(1)> & \"quoted\" </td>"
        node = self.nodes[0]
        self.running(machine("plain", node=node))
        apply({
            "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
            "kind": "NodeMaintenance",
            "metadata": {"name": "markup"},
            "spec": {"nodeName": node, "reason": text},
        })
        console = self.console()
        page = self.page(console, f"/nodes/{node}")
        expect(page.locator("#maintenance")).to_contain_text(text)
        self.assertEqual(page.locator("main img").count(), 0)
        page.goto(f"{console.address}/nodes?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        expect(page.locator("#no-match")).to_contain_text("<img src=x onerror=alert(1)>")
        page.goto(f"{console.address}/nodes/%3Cimg%3E")
        expect(page.locator("#missing")).to_contain_text("There is no node <img>")
        self.assertIsNotNone(got("vmi", "plain", "-n", NAMESPACE))

    def test_page_shows_that_the_api_server_is_gone_and_recovers(self) -> None:
        connection = Connection()
        self.addCleanup(connection.close)
        console = self.console("--kubeconfig", connection.kubeconfig)
        page = self.page(console)
        connection.cut()
        expect(page.locator("#stale")).to_contain_text("the API server cannot be reached")
        node = self.nodes[0]
        page.get_by_label(f"Options menu for {node}").click()
        start = page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance")
        expect(start).to_be_disabled()
        kubectl("cordon", node)
        try:
            connection.mend()
            expect(page.locator("#stale")).to_have_count(0)
            # A node without virtual machines is drained shortly after it is cordoned.
            expect(page.locator(f"tr[id='node/{node}']")).to_contain_text(re.compile("Closed|Empty"))
            expect(start).to_be_enabled()
        finally:
            kubectl("uncordon", node)
        expect(page.locator(f"tr[id='node/{node}']")).to_contain_text("Open")

    def test_page_shows_that_the_console_has_ended(self) -> None:
        console = self.console("--port", "0")
        page = self.page(console)
        console.close()
        expect(page.locator("#connection")).to_contain_text("No connection to the console")
        expect(page.locator("#nodes")).to_contain_text(self.nodes[0])

    def test_console_that_only_reads_starts_nothing(self) -> None:
        page = self.page(self.console("--read-only"))
        node = self.nodes[0]
        page.get_by_label(f"Options menu for {node}").click()
        menu = page.locator(f"[id='menu/{node}']")
        expect(menu.get_by_role("button", name="Start Maintenance")).to_be_disabled()
        expect(menu).to_contain_text("this console was started with --read-only")

    def test_careful_context_wants_the_name_of_the_node(self) -> None:
        page = self.page(self.console("--careful", "."))
        node = self.nodes[0]
        page.get_by_label(f"Options menu for {node}").click()
        page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance").click()
        window = page.get_by_role("dialog")
        window.get_by_label("to confirm").fill("another")
        window.get_by_role("button", name="Start Maintenance").click()
        expect(window.locator(".error")).to_contain_text(f"type `{node}` to confirm")
        self.assertEqual(got("nodemaintenances.nodemaintenance.medik8s.io")["items"], [])
        window.get_by_label("to confirm").fill(node)
        window.get_by_role("button", name="Start Maintenance").click()
        expect(page.get_by_text(f"Maintenance of {node} started.")).to_be_visible()


if __name__ == "__main__":
    unittest.main()
