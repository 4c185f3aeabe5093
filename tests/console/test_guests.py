"""Tests consoles and displays of guests in the browser: input, output, and takeover by another client."""

from __future__ import annotations

import re
import unittest
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from console import IMAGE, NAMESPACE, READ, Case, apply, controllers_apart, got, kubectl, machine, node_of, until, user
from playwright.sync_api import Page, expect

NAME = "guest"
GUEST = f"/virtual-machines/{NAMESPACE}/{NAME}"
CONSOLE, DISPLAY = f"{GUEST}/console", f"{GUEST}/display"
# Returns the number of colours of a canvas: 1 if it is blank.
COLOURS = """canvas => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


def with_devices(name: str, **devices: bool) -> dict[str, Any]:
    """Return the manifest of a virtual machine with these settings of its devices."""
    manifest = machine(name)
    manifest["spec"]["template"]["spec"]["domain"]["devices"].update(devices)
    return manifest


def log_in(page: Page) -> None:
    """Log in on the console that a page shows, unless an earlier test has done so."""
    screen = page.locator("#terminal")
    expect(page.locator("#state")).to_contain_text("Connected")
    screen.focus()
    # A getty drops input that was typed before it started.
    for _ in range(60):
        page.keyboard.press("Enter")
        page.wait_for_timeout(1000)
        if prompt := re.search(r"(login:|~#)\s*$", screen.inner_text()):
            break
    if not prompt or prompt[1] == "login:":
        page.keyboard.type("root\n")
    expect(screen).to_contain_text("~#")


class Guests(Case):
    shared = NAME

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        until("a controller on each of two nodes", controllers_apart)

    def test_console_of_a_guest_shows_input_and_output(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        page = self.page(self.console(), GUEST)
        page.get_by_role("link", name="Console").click()
        log_in(page)
        screen = page.locator("#terminal")
        page.keyboard.type("echo $((6 * 7))-typed\n")
        expect(screen).to_contain_text("42-typed")
        # Tab goes to the guest, which completes the command.
        page.keyboard.type("hostn")
        page.keyboard.press("Tab")
        expect(screen).to_contain_text("hostname")
        page.keyboard.press("Control+c")
        # In pasted text, the end of a line acts as Enter.
        page.evaluate("""() => {
          const data = new DataTransfer();
          data.setData("text/plain", "echo $((6 * 8))-pasted\\n");
          document.activeElement.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
        }""")
        expect(screen).to_contain_text("48-pasted")
        page.keyboard.press("Control+Shift+Escape")
        expect(page.locator("#below")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Text")).to_be_focused()
        page.keyboard.type("echo $((6 * 9))-sent")
        page.keyboard.press("Enter")
        expect(screen).to_contain_text("54-sent")
        expect(page.get_by_label("Text")).to_have_value("")

    def test_markup_of_a_guest_is_text(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        page = self.page(self.console(), CONSOLE)
        log_in(page)
        page.keyboard.type("clear; printf '<img src=x onerror=alert(1)>\\033[31m</div><b>red</b>\\033[0m\\n'\n")
        expect(page.locator("#terminal .f1")).to_have_text("</div><b>red</b>")
        expect(page.locator("#terminal")).to_contain_text("<img src=x onerror=alert(1)>")
        self.assertEqual(page.locator("#terminal img, #terminal b").count(), 0)
        self.assertEqual(page.locator("#terminal > .row").count(), 24)

    def test_display_shows_the_guest_and_takes_the_keyboard(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        console = self.console()
        serial = self.page(console, CONSOLE)
        log_in(serial)
        page = serial.context.new_page()
        page.goto(f"{console.address}/nodes#key={self.link(serial)}")
        page.wait_for_selector("#summary")
        page.goto(console.address + DISPLAY)
        canvas = page.locator("#canvas")
        expect(canvas).to_be_visible()
        until("a picture", lambda: canvas.evaluate(COLOURS) > 1)
        page.locator("#display").click()
        page.keyboard.type("root\n")
        page.wait_for_timeout(3000)
        page.keyboard.type("echo $((6 * 7))-display > /dev/ttyS0\n")
        expect(serial.locator("#terminal")).to_contain_text("42-display")
        page.get_by_label("Text").fill("echo \"Sent_$((6 * 8))\" >/dev/ttyS0")
        page.get_by_role("button", name="Send").click()
        expect(serial.locator("#terminal")).to_contain_text("Sent_48")
        # Type, code and value of each event: Delete (111) is pressed after Ctrl and Alt.
        serial.locator("#terminal").focus()
        serial.keyboard.type("clear; hexdump -v -e '24/1 \"%02x \" \"\\n\"' /dev/input/event0 | cut -c 49-\n")
        expect(serial.locator("#terminal")).not_to_contain_text("Sent_48")
        pressed = re.compile(".*".join(f"01 00 {code} 00 01 00 00 00" for code in ("1d", "38", "6f")), re.DOTALL)

        def is_pressed() -> bool:
            page.get_by_role("button", name="Ctrl+Alt+Del").click()
            page.wait_for_timeout(1000)
            return bool(pressed.search(serial.locator("#terminal").inner_text()))

        # The first key presses may arrive before the guest reads events.
        until("Ctrl, Alt and Delete in the guest", is_pressed)
        serial.locator("#terminal").focus()
        serial.keyboard.press("Control+c")
        # When a page is closed, it drops unsent input, and the next test needs a prompt.
        expect(serial.locator("#terminal")).to_contain_text("~#")

    def link(self, page: Page) -> str:
        """Create another link and return its key."""
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Link for another browser").click()
        notice = page.locator("#notices").get_by_text("#key=")
        expect(notice).to_be_visible()
        return notice.inner_text().partition("#key=")[2].split()[0]

    def test_second_console_replaces_the_first_which_shows_that(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        first = self.page(self.console(), CONSOLE)
        log_in(first)
        second = self.page(self.console(), CONSOLE)
        expect(first.locator("#state")).to_contain_text("Another client has taken over the console")
        expect(second.locator("#state")).to_contain_text("Connected")
        # The earlier output stays on the page.
        expect(first.locator("#terminal")).to_contain_text("~#")
        first.get_by_role("link", name="Connect again").click()
        expect(first.locator("#state")).to_contain_text("Connected")
        expect(second.locator("#state")).to_contain_text("Another client has taken over the console")

    def test_display_is_taken_only_on_request(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        first = self.page(self.console(), DISPLAY)
        expect(first.locator("#canvas")).to_be_visible()
        second = self.page(self.console(), DISPLAY)
        expect(second.locator("#state")).to_contain_text("Another client has this display open")
        expect(first.locator("#state")).to_contain_text("Connected")
        second.get_by_role("link", name="Take it over").click()
        expect(second.locator("#canvas")).to_be_visible()
        expect(first.locator("#state")).to_contain_text("Another client has taken over the display")

    def test_closing_the_tab_leaves_the_display_to_others(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        first = self.page(self.console(), DISPLAY)
        expect(first.locator("#canvas")).to_be_visible()
        first.goto("about:blank")
        second = self.page(self.console(), DISPLAY)
        until("the display", lambda: second.reload() and self.is_connected(second))

    def is_connected(self, page: Page) -> bool:
        """Wait until a page no longer shows `Connecting`, and return whether it is connected to the guest."""
        expect(page.locator("#state")).not_to_contain_text("Connecting")
        return "Connected" in page.locator("#state").inner_text()

    def test_console_follows_a_guest_that_migrates_until_the_end(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        page = self.page(self.console(), CONSOLE)
        log_in(page)
        shown = self.page(self.console(), DISPLAY)
        expect(shown.locator("#canvas")).to_be_visible()
        before = node_of(NAME)
        apply({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "move", "namespace": NAMESPACE},
            "spec": {"vmiName": NAME},
        })
        self.addCleanup(kubectl, "delete", "vmim", "move", "-n", NAMESPACE, "--ignore-not-found")
        until("the migration", lambda: got("vmim", "move", "-n", NAMESPACE).get("status", {}).get("phase") == "Succeeded")
        self.assertNotEqual(node_of(NAME), before)
        for open_page in (page, shown):
            expect(open_page.locator("#state")).to_contain_text(f"it migrated to node {node_of('guest')}")
            expect(open_page.locator("#state")).to_contain_text("Connected again")
        page.locator("#terminal").focus()
        page.keyboard.type("echo $((6 * 11))-there\n")
        expect(page.locator("#terminal")).to_contain_text("66-there")
        until("a picture", lambda: shown.locator("#canvas").evaluate(COLOURS) > 1)
        kubectl("delete", "vm", NAME, "-n", NAMESPACE)
        expect(page.locator("#state")).to_contain_text(re.compile("The guest is no longer running|The console has ended"))
        expect(page.locator("#terminal")).to_contain_text("66-there")

    def test_user_without_the_right_sees_which_is_missing(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        with user("console-viewer", READ) as name:
            page = self.page(self.console("--as", name), GUEST)
            for label, resource in (("Console", "console"), ("Display", "vnc")):
                expect(page.get_by_role("button", name=label)).to_be_disabled()
                missing = f"you lack the right to get virtualmachineinstances/{resource} of subresources.kubevirt.io"
                expect(page.locator("#head")).to_contain_text(missing)
            page.goto(page.url + "/console")
            expect(page.locator("#unavailable")).to_contain_text("virtualmachineinstances/console")
            self.assertEqual(page.locator("#terminal").count(), 0)

    def test_console_that_only_reads_shows_the_display_alone(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        console = self.console("--read-only")
        page = self.page(console, GUEST)
        expect(page.get_by_role("button", name="Console")).to_be_disabled()
        expect(page.locator("#head")).to_contain_text("this console was started with --read-only")
        page.goto(console.address + CONSOLE)
        expect(page.locator("#unavailable")).to_contain_text("--read-only")
        page.goto(console.address + DISPLAY)
        canvas = page.locator("#canvas")
        expect(canvas).to_be_visible()
        until("a picture", lambda: canvas.evaluate(COLOURS) > 1)
        self.assertEqual(page.locator("[data-guest], #below form").count(), 0)
        refused = page.evaluate("""async () => (await fetch("/api/guest/input", {method: "POST", body: '{"guest": "1", "text": "x"}',
          headers: {"X-Drydock-Session": sessionStorage.getItem("drydock-session"), "Content-Type": "application/json"}})).status""")
        self.assertEqual(refused, 403)

    def test_guest_without_the_device_has_the_cause(self) -> None:
        self.running(with_devices("plain", autoattachSerialConsole=False, autoattachGraphicsDevice=False))
        page = self.page(self.console(), f"/virtual-machines/{NAMESPACE}/plain")
        expect(page.get_by_role("button", name="Console")).to_be_disabled()
        expect(page.locator("#head")).to_contain_text("the virtual machine has no serial console")
        expect(page.locator("#head")).to_contain_text("the virtual machine has no graphics device")
        kubectl("delete", "vm", "plain", "-n", NAMESPACE)
        page.goto(page.url + "/console")
        expect(page.locator("#unavailable")).to_contain_text("the virtual machine is not running")

    def test_pages_of_a_guest_have_no_finding_of_axe(self) -> None:
        self.running(machine(NAME, image=IMAGE))
        console = self.console()
        page = self.page(console)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for width in (1280, 320):
                page.set_viewport_size({"width": width, "height": 800})
                for path, screen in ((GUEST, "#places"), (CONSOLE, "#terminal"), (DISPLAY, "#canvas")):
                    page.goto(console.address + path)
                    expect(page.locator(screen)).to_be_visible()
                    found = Axe().run(page)
                    self.assertEqual(found.violations_count, 0, f"{path} {scheme} {width}: {found.generate_report()}")
                    beside = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                    self.assertEqual(beside, 0, f"{path} {scheme} {width} is {beside} pixels too wide")


if __name__ == "__main__":
    unittest.main()
