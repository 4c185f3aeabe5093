"""Tests each page by keyboard, on a narrow screen, in light and dark mode, and with axe-core; and the types of the script."""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from console import NAMESPACE, Case, apply, machine
from playwright.sync_api import Page, expect

ASSETS = Path(__file__).parents[2] / "controller" / "cli" / "src" / "console" / "assets"
MOST_LINES = 300


class Pages(Case):
    def paths(self) -> list[str]:
        """Put a node into maintenance that a guest blocks, and return the paths of all pages."""
        node = self.nodes[0]
        self.running(machine("stuck", node=node))
        apply({
            "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
            "kind": "NodeMaintenance",
            "metadata": {"name": node},
            "spec": {"nodeName": node, "reason": "new disk"},
        })
        return ["/nodes", f"/nodes/{node}", "/virtual-machines", f"/virtual-machines/{NAMESPACE}/stuck", "/migrations", "/check", "/nodes/none"]

    def test_no_page_has_a_finding_of_axe_or_scrolls_sideways(self) -> None:
        paths = self.paths()
        console = self.console()
        page = self.page(console)
        expect(page.locator(f"tr[id='node/{self.nodes[0]}']")).to_contain_text("Blocked")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for width in (1280, 320):
                page.set_viewport_size({"width": width, "height": 800})
                for path in paths:
                    page.goto(console.address + path)
                    page.wait_for_selector("main h1")
                    self._picture_of(page, f"{path.strip('/').replace('/', '-')}-{scheme}-{width}")
                    self.check(page, f"{path} {scheme} {width}")
                page.goto(console.address + "/nodes")
                other = self.nodes[1]
                page.get_by_label(f"Options menu for {other}").click()
                page.locator(f"[id='menu/{other}']").get_by_role("button", name="Start Maintenance").click()
                expect(page.get_by_role("dialog")).to_contain_text("Room afterwards")
                self._picture_of(page, f"start-{scheme}-{width}")
                self.check(page, f"dialog {scheme} {width}")

    def check(self, page: Page, what: str) -> None:
        """Assert that axe-core finds nothing and that the page does not scroll sideways."""
        found = Axe().run(page)
        self.assertEqual(found.violations_count, 0, f"{what}: {found.generate_report()}")
        beside = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        self.assertEqual(beside, 0, f"{what} is {beside} pixels too wide")

    def _picture_of(self, page: Page, name: str) -> None:
        if folder := os.environ.get("DRYDOCK_TEST_PICTURES"):
            page.screenshot(path=Path(folder) / f"{name}.png")

    def test_maintenance_is_started_by_keyboard_alone(self) -> None:
        page = self.page(self.console())
        node = self.nodes[0]
        menu = page.get_by_label(f"Options menu for {node}")
        for _ in range(40):
            page.keyboard.press("Tab")
            if menu.evaluate("element => element === document.activeElement"):
                break
        expect(menu).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.locator(f"[id='menu/{node}']").get_by_role("button", name="Start Maintenance")).to_be_focused()
        page.keyboard.press("Enter")
        window = page.get_by_role("dialog", name=f"Start Maintenance on {node}")
        expect(window).to_contain_text("Room afterwards")
        reason = window.get_by_label("Reason")
        for _ in range(20):
            if reason.evaluate("element => element === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.type("by keyboard")
        page.keyboard.press("Enter")
        expect(page.get_by_text(f"Maintenance of {node} started.")).to_be_visible()
        expect(page.locator(f"tr[id='node/{node}']")).to_contain_text("Empty")

    def test_focus_and_open_folds_outlive_an_update(self) -> None:
        page = self.page(self.console())
        node = self.nodes[0]
        menu = page.get_by_label(f"Options menu for {node}")
        menu.click()
        before = page.locator(f"tr[id='node/{node}']").inner_html()
        apply({
            "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
            "kind": "NodeMaintenance",
            "metadata": {"name": node},
            "spec": {"nodeName": node},
        })
        expect(page.locator(f"tr[id='node/{node}']")).to_contain_text("Empty")
        self.assertNotEqual(page.locator(f"tr[id='node/{node}']").inner_html(), before)
        expect(menu).to_be_focused()
        expect(page.locator(f"[id='menu/{node}']").get_by_role("button", name="Stop Maintenance")).to_be_visible()

    def test_script_is_short_and_the_types_hold(self) -> None:
        scripts = sorted(ASSETS.glob("*.js"))
        self.assertLessEqual(sum(len(script.read_text().splitlines()) for script in scripts), MOST_LINES)
        checks = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--target", "es2022", "--module", "es2022"]
        done = subprocess.run(
            [os.environ["DRYDOCK_TEST_TSC"], *checks, "--lib", "es2022,dom,dom.iterable", *map(str, scripts)],
            capture_output=True, text=True, timeout=120, check=False,
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
