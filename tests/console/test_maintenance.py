"""Tests maintenance in the browser: the documented procedure, and a comparison of plans with their results."""

from __future__ import annotations

import unittest

from console import NAMESPACE, Case, apply, got, kubectl, machine, node_of, until
from playwright.sync_api import expect


class Maintenance(Case):
    def test_node_goes_into_maintenance_and_out_again(self) -> None:
        self.running(machine("mover"))
        node = node_of("mover")
        other = next(name for name in self.nodes if name != node)
        console = self.console()
        page = self.page(console)

        # "In the console, click Compute → Nodes."
        page.get_by_role("navigation", name="Main").get_by_role("link", name="Nodes").click()
        # "Click the Options menu at the end of the node and select Start Maintenance."
        page.get_by_label(f"Options menu for {node}").click()
        page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance").click()
        # "Click Start Maintenance in the confirmation window", which first shows what will happen.
        window = page.get_by_role("dialog", name=f"Start Maintenance on {node}")
        expect(window).to_contain_text("1 virtual machine moves")
        window.get_by_text("1 virtual machine moves").click()
        expect(window).to_contain_text(f"{NAMESPACE}/mover 96 MiB to {other}, for example")
        window.get_by_label("Reason").fill("new disk")
        window.get_by_role("button", name="Start Maintenance").click()
        expect(page.get_by_text(f"Maintenance of {node} started.")).to_be_visible()

        row = page.locator(f"tr[id='node/{node}']")
        expect(row).to_contain_text("Empty")
        expect(row).to_contain_text("safe to switch off")
        self.assertEqual(node_of("mover"), other)
        [made] = got("nodemaintenances.nodemaintenance.medik8s.io")["items"]
        self.assertEqual((made["spec"]["nodeName"], made["spec"]["reason"]), (node, "new disk"))

        page.get_by_role("navigation", name="Main").get_by_role("link", name="Migrations").click()
        migration = page.locator("#migration-rows tr").filter(has_text=f"{NAMESPACE}/mover")
        expect(migration.first).to_contain_text("Succeeded")
        migration.first.get_by_role("link", name="mover").click()
        expect(page.locator("#head")).to_contain_text(f"of {NAMESPACE}/mover")
        page.get_by_role("navigation", name="Main").get_by_role("link", name="Nodes").click()

        # "Click the node name to open the Node Details screen and click Actions → Stop Maintenance."
        row.get_by_role("link", name=node).click()
        expect(page.locator("#maintenance")).to_contain_text("new disk")
        page.locator("#actions > summary").click()
        page.locator("#actions").get_by_role("button", name="Stop Maintenance").click()
        # "Click Stop Maintenance in the confirmation window."
        window = page.get_by_role("dialog", name=f"Stop Maintenance on {node}")
        expect(window).to_contain_text("Nothing moves back.")
        window.get_by_role("button", name="Stop Maintenance").click()
        # "The node becomes schedulable, but virtual machines will not automatically migrate back to this node."
        expect(page.locator("#head")).to_contain_text("Open")
        self.assertNotIn("unschedulable", got("node", node)["spec"])
        self.assertEqual(node_of("mover"), other)

    def test_blockers_are_named_with_a_remedy_that_helps(self) -> None:
        node = self.nodes[0]
        self.running(machine("stuck", node=node))
        console = self.console()
        page = self.page(console, f"/nodes/{node}")
        page.locator("#actions > summary").click()
        page.locator("#actions").get_by_role("button", name="Start Maintenance").click()
        window = page.get_by_role("dialog")
        expect(window).to_contain_text("1 virtual machine blocks")
        remedy = f"kubectl annotate vmi -n {NAMESPACE} stuck drydock.dev/evacuation-fallback=restart"
        expect(window).to_contain_text(remedy)
        window.get_by_role("button", name="Start Maintenance").click()
        expect(page.locator("#head")).to_contain_text("Blocked")
        row = page.locator(f"tr[id='guest/{NAMESPACE}/stuck']")
        expect(row).to_contain_text("no other node can run the guest")
        # Run the remedy that the window showed.
        kubectl(*remedy.split()[1:])
        expect(page.locator("#head")).to_contain_text("safe to switch off")

    def test_two_browsers_see_the_same_and_either_ends_maintenance(self) -> None:
        console = self.console()
        one = self.page(console)
        one.context.grant_permissions(["clipboard-read", "clipboard-write"])
        one.get_by_role("button", name="Link for another browser").click()
        line = one.locator("#notices p").first.inner_text()
        other = self.context().new_page()
        other.goto(line.split("machine: ")[1].split()[0])
        node = self.nodes[0]
        row = f"tr[id='node/{node}']"
        expect(other.locator(row)).to_contain_text("Open")
        one.get_by_label(f"Options menu for {node}").click()
        one.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance").click()
        one.get_by_role("dialog").get_by_role("button", name="Start Maintenance").click()
        expect(other.locator(row)).to_contain_text("Empty")
        # An open dialog shows that another browser was faster.
        for page in (one, other):
            page.get_by_label(f"Options menu for {node}").click()
            page.locator(f"[id='menu/{node}']").get_by_role("button", name="Stop Maintenance").click()
        other.get_by_role("dialog").get_by_role("button", name="Stop Maintenance").click()
        expect(one.get_by_role("dialog")).to_contain_text("The node is no longer in maintenance.")
        expect(one.get_by_role("dialog").get_by_role("button", name="Stop Maintenance")).to_be_disabled()
        expect(other.locator(row)).to_contain_text("Open")

    def test_several_nodes_are_ticked_and_planned_together(self) -> None:
        console = self.console()
        page = self.page(console)
        button = page.get_by_role("button", name="Start Maintenance on the selected nodes")
        expect(button).to_be_hidden()
        nodes = sorted(self.nodes[:2])
        for node in nodes:
            page.get_by_label(f"Select {node}").check()
        # A row stays selected when it changes.
        kubectl("cordon", nodes[0])
        self.addCleanup(kubectl, "uncordon", nodes[0])
        expect(page.locator(f"tr[id='node/{nodes[0]}']")).to_contain_text("Closed")
        expect(page.get_by_label(f"Select {nodes[0]}")).to_be_checked()
        button.click()
        window = page.get_by_role("dialog")
        expect(window).to_contain_text(f"Start Maintenance on {', '.join(nodes)}")
        for node in nodes:
            expect(window.get_by_role("heading", name=node, exact=True)).to_be_visible()
        expect(window.get_by_role("button", name="Start Maintenance", exact=True)).to_be_enabled()
        window.get_by_role("button", name="Close").click()
        page.get_by_label(f"Select {nodes[0]}").uncheck()
        page.get_by_label(f"Select {nodes[1]}").uncheck()
        expect(button).to_be_hidden()

    def test_refusal_of_the_api_server_is_shown_and_the_form_kept(self) -> None:
        console = self.console()
        page = self.page(console)
        node = self.nodes[0]
        page.get_by_label(f"Options menu for {node}").click()
        page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance").click()
        window = page.get_by_role("dialog")
        window.get_by_label("Reason").fill("kept")
        # The form accepts this value, but the API server does not: the maintenance would end before it begins.
        window.get_by_label("Abort and restore the node after").fill("0s")
        window.get_by_role("button", name="Start Maintenance").click()
        expect(window.locator(".error")).to_contain_text("must be longer than 0s")
        self.assertEqual(window.get_by_label("Reason").input_value(), "kept")
        self.assertEqual(got("nodemaintenances.nodemaintenance.medik8s.io")["items"], [])

    def test_change_in_the_cluster_reaches_the_page_without_reload(self) -> None:
        console = self.console()
        page = self.page(console, "/virtual-machines")
        row = page.locator(f"tr[id='vm/{NAMESPACE}/late']")
        expect(row).to_have_count(0)
        apply(machine("late"))
        expect(row).to_contain_text("Running")
        page.get_by_label("Filter virtual machines").fill("no such machine")
        expect(row).to_have_count(0)
        page.get_by_label("Filter virtual machines").fill("late")
        expect(row).to_have_count(1)
        row.get_by_role("link", name="late").click()
        expect(page.locator("#places")).to_contain_text("yes")
        kubectl("delete", "vm", "late", "-n", NAMESPACE)
        expect(page.locator("#missing")).to_contain_text("There is no virtual machine")
        until("no instance", lambda: not got("vmi", "-n", NAMESPACE)["items"])


    def test_misconfiguration_is_found_with_the_command_for_repair(self) -> None:
        node = self.nodes[0]
        page = self.page(self.console())
        kubectl("cordon", node)
        self.addCleanup(kubectl, "uncordon", node)
        page.get_by_role("navigation", name="Main").get_by_role("link", name="Check").click()
        finding = page.locator("li").filter(has_text="no node is cordoned without a maintenance")
        expect(finding).to_contain_text("warning")
        expect(finding).to_contain_text(f"kubectl uncordon {node}")
        kubectl("uncordon", node)
        page.get_by_role("link", name="Check again").click()
        expect(finding).to_contain_text("ok")


if __name__ == "__main__":
    unittest.main()
