//! The page with the console or the display of a guest. The content comes from `guest`, this module renders the page
//! around it.

use std::sync::Arc;

use drydock_api::kubevirt::{Phase, VirtualMachineInstance};
use maud::{Markup, html};

use super::{
    PageContext,
    parts::{command, machine_path, missing, node_path, segment},
};
use crate::console::{
    guest::{COLUMNS, FRAME, INPUT, Picture, ROWS, Shown, StreamStatus},
    page::{Page, ROOT},
    rights::UserAction,
    view::{ConsoleView, GuestDevice},
};

/// Element with the rows of a console.
const TERMINAL: &str = "terminal";
/// Element with the canvas of a display.
const DISPLAY: &str = "display";

impl GuestDevice {
    fn action(self) -> UserAction {
        match self {
            Self::Console => UserAction::Console,
            Self::Display { .. } => UserAction::Display,
        }
    }

    /// Returns the name of the device, which is also the last segment of the page's path.
    fn name(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Display { .. } => "display",
        }
    }
}

/// State that the page of a guest depends on, besides the guest itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::console) struct GuestPageContext {
    /// Whether the console sends no input to guests.
    pub(in crate::console) read_only: bool,
    /// Whether the guest is running, as far as is known.
    pub(in crate::console) runs: bool,
}

/// Returns the path of a guest's page.
fn path(namespace: &str, name: &str, device: GuestDevice) -> String {
    format!("{}/{}", machine_path(namespace, name), segment(device.name()))
}

/// Returns the reason why a guest's console or display cannot be opened now. Returns `None` if it can be opened.
pub(in crate::console) fn unavailable(
    namespace: &str,
    name: &str,
    device: GuestDevice,
    context: &PageContext<'_>,
) -> Option<String> {
    let Some(instance) = find(namespace, name, context) else {
        return Some("the virtual machine is not running".into());
    };
    let devices = &instance.spec.domain.devices;
    let attached = match device {
        GuestDevice::Console => devices.autoattach_serial_console,
        GuestDevice::Display { .. } => devices.autoattach_graphics_device,
    };
    if attached == Some(false) {
        let what = match device {
            GuestDevice::Console => "serial console",
            GuestDevice::Display { .. } => "graphics device",
        };
        return Some(format!("the virtual machine has no {what}"));
    }
    match instance.phase().unwrap_or_default() {
        Phase::Running => missing(device.action(), context).map(str::to_owned),
        phase => Some(format!(
            "the virtual machine is not running, its phase is {}",
            phase.as_str()
        )),
    }
}

/// Returns whether a guest is running and not being deleted.
pub(in crate::console) fn runs(namespace: &str, name: &str, context: &PageContext<'_>) -> bool {
    find(namespace, name, context).is_some_and(|instance| {
        instance.phase() == Some(Phase::Running) && instance.metadata.deletion_timestamp.is_none()
    })
}

fn find<'a>(namespace: &str, name: &str, context: &PageContext<'a>) -> Option<&'a Arc<VirtualMachineInstance>> {
    let mut instances = context.snapshot.instances.iter();
    instances.find(|instance| {
        let metadata = &instance.metadata;
        metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
    })
}

/// Returns the links to the console and the display of a virtual machine. Instead of a link that cannot be opened,
/// there is a disabled button with the reason.
pub(super) fn links(namespace: &str, name: &str, context: &PageContext<'_>) -> Markup {
    html! {
        div.buttons.guest {
            @for (device, label) in [(GuestDevice::Console, "Console"), (GuestDevice::Display { take: false }, "Display")] {
                @match unavailable(namespace, name, device, context) {
                    None => {
                        a.button href=(path(namespace, name, device)) { (label) }
                        @if device == GuestDevice::Console { span.quiet { "disconnects any other client" } }
                    }
                    Some(why) => {
                        button type="button" disabled title=(why) { (label) }
                        span.why { (why) }
                    }
                }
            }
        }
    }
}

/// Returns the page without the content of the guest.
pub(super) fn page(namespace: &str, name: &str, device: GuestDevice, context: &PageContext<'_>) -> Page {
    let title = if device == GuestDevice::Console {
        "Console"
    } else {
        "Display"
    };
    let mut page = Page::new(format!("{title} of {namespace}/{name}"));
    let instance = find(namespace, name, context);
    let node = instance.and_then(|instance| instance.node_name());
    let phase = instance.map_or("not running", |instance| instance.phase().unwrap_or_default().as_str());
    page.push(
        ROOT,
        "head",
        html! {
            header #head {
                nav aria-label="Breadcrumb" {
                    a href="/virtual-machines" { "Virtual machines" } " / "
                    a href=(machine_path(namespace, name)) { (namespace) "/" (name) } " / " (title)
                }
                h1 { (title) " of " (namespace) "/" (name) }
                p.summary { (phase) @if let Some(node) = node { " on " a href=(node_path(node)) { (node) } } }
            }
        },
    );
    if let Some(why) = unavailable(namespace, name, device, context) {
        page.push(
            ROOT,
            "unavailable",
            html! { p #unavailable .banner.warning { "Not available: " (why) "." } },
        );
    }
    page
}

/// Appends the content of the guest.
pub(in crate::console) fn show(page: &mut Page, view: &ConsoleView, shown: &Shown, circumstances: GuestPageContext) {
    let ConsoleView::Guest {
        namespace,
        name,
        device,
    } = view
    else {
        return;
    };
    // An open device is available, whatever the reason was.
    page.parts.retain(|part| part.id != "unavailable");
    let GuestPageContext { read_only, runs } = circumstances;
    page.push(ROOT, "state", state((namespace, name), *device, &shown.status, runs));
    match &shown.picture {
        Picture::Rows(rows) => terminal(page, &format!("{namespace}/{name}"), shown.id, rows),
        Picture::Size(Some(size)) => display(page, &format!("{namespace}/{name}"), shown.id, *size, read_only),
        Picture::Size(None) => {}
    }
    page.push(ROOT, "below", below(namespace, name, *device, shown.id, read_only));
}

/// Returns the state of the connection, and the possible actions.
fn state((namespace, name): (&str, &str), device: GuestDevice, status: &StreamStatus, runs: bool) -> Markup {
    let what = device.name();
    let path = path(namespace, name, device);
    let is_bad = !matches!(status, StreamStatus::Connecting | StreamStatus::Connected(_));
    html! {
        p #state role="status" .banner.warning[is_bad] {
            @match status {
                StreamStatus::Connecting => "Connecting…",
                StreamStatus::Connected(None) if device == GuestDevice::Console => {
                    "Connected. The console shows the output of the guest from now on: press Enter for a prompt."
                }
                StreamStatus::Connected(None) => "Connected.",
                StreamStatus::Connected(Some(reason)) => { "Connected again after: " (reason) "." }
                StreamStatus::Reconnecting(reason) => { "Closed: " (reason) ". The " (what) " is reconnecting." }
                StreamStatus::InUse => {
                    "Another client has this display open. "
                    a href={ (path) "/take" } { "Take it over" } " or " a href=(path) { "try again" } "."
                }
                // The API server may not know the reason yet.
                StreamStatus::Lost if !runs => {
                    "The guest is no longer running. " a href=(path) { "Connect again" } "."
                }
                StreamStatus::Lost => {
                    "Another client has taken over the " (what) ", or the connection was lost. "
                    a href=(path) { "Connect again" } "."
                }
                StreamStatus::Ended(reason) => { "The " (what) " has ended: " (reason) ". " a href=(path) { "Connect again" } "." }
            }
        }
    }
}

fn terminal(page: &mut Page, name: &str, id: u64, rows: &[Markup]) {
    let label = format!("Serial console of {name}, {COLUMNS} columns and {ROWS} rows");
    page.push(
        ROOT,
        TERMINAL,
        html! {
            div id=(TERMINAL) .guest-screen tabindex="0" role="textbox" aria-multiline="true" aria-label=(label)
                aria-describedby="keyboard" data-guest=(id) {}
        },
    );
    for (number, row) in rows.iter().enumerate() {
        let id = format!("row/{number}");
        let html = html! { div id=(id) .row { (row) } };
        page.push(TERMINAL, id, html);
    }
}

fn display(page: &mut Page, name: &str, id: u64, (width, height): (u16, u16), read_only: bool) {
    let label = format!("Display of {name}, {width} by {height} pixels");
    let frames = format!("{FRAME}?guest={id}&width={width}&height={height}");
    page.push(
        ROOT,
        DISPLAY,
        html! {
            @if read_only {
                div id=(DISPLAY) .guest-screen {}
            } @else {
                div id=(DISPLAY) .guest-screen tabindex="0" role="application" aria-label={ "Keyboard and pointer of " (name) }
                    aria-describedby="keyboard" data-guest=(id) {}
            }
        },
    );
    page.push(
        DISPLAY,
        "canvas",
        html! { canvas #canvas role="img" aria-label=(label) width=(width) height=(height) data-frames=(frames) {} },
    );
}

/// Returns the part below the screen: the keys that leave the screen, and forms for input that a keyboard cannot send.
fn below(namespace: &str, name: &str, device: GuestDevice, id: u64, read_only: bool) -> Markup {
    let virtctl = if device == GuestDevice::Console {
        "console"
    } else {
        "vnc"
    };
    html! {
        section #below tabindex="-1" aria-label="Input" {
            @if read_only {
                p.quiet { "Nothing is sent to the guest: this console was started with --read-only." }
            } @else {
                p #keyboard .quiet {
                    "While the " (device.name()) " has the focus, all keys are sent to the guest, including Tab. "
                    kbd { "Ctrl+Shift+Esc" } " or " kbd { "Ctrl+F6" } " leaves the " (device.name()) "."
                    @if device == GuestDevice::Console {
                        " " kbd { "Ctrl+Shift+C" } " copies the selection, and " kbd { "Ctrl+Shift+V" } " pastes."
                    }
                }
                div.inputs {
                    form #text-form data-post=(INPUT) {
                        input type="hidden" name="guest" value=(id);
                        label for="text" { "Text" }
                        input #text name="text" autocomplete="off" autocapitalize="off" spellcheck="false";
                        label { input type="checkbox" name="enter" value="yes" checked; " and Enter" }
                        button type="submit" { "Send" }
                        p.error role="alert" hidden {}
                    }
                    @if device != GuestDevice::Console {
                        form #chord-form data-post=(INPUT) {
                            input type="hidden" name="guest" value=(id);
                            input type="hidden" name="ctrl_alt_delete" value="yes";
                            button type="submit" { "Ctrl+Alt+Del" }
                            p.error role="alert" hidden {}
                        }
                    }
                }
            }
            (command(&format!("virtctl {virtctl} -n {namespace} {name}")))
        }
    }
}
