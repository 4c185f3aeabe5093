//! Current activity of the guest, as libvirt records it in the domain's state file.
//!
//! ```text
//! <domstatus state='running' reason='booted' pid='40'>
//!   ...
//!   <job type='none' async='migration out' phase='perform3'/>
//! ```
//!
//! libvirt rewrites the file at each change. Reading the file never blocks on a libvirtd that is busy with a migration
//! or is restarting.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Maximum size to read in bytes. The file of a guest with a hundred disks has a quarter of this size.
const MOST: u64 = 1 << 20;

/// The activity of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GuestActivity {
    /// The pod has no guest, as far as the file shows.
    #[default]
    Absent,
    /// The guest's virtual CPUs are not running: the guest was paused, or is arriving.
    Still,
    /// The guest is paused for the final phase of an outgoing migration. Another pod may have the complete guest, or
    /// get it soon.
    Leaving,
    /// The guest runs while it is copied to or from another pod. It may be throttled to any degree.
    Moving,
    /// The guest runs.
    Running,
}

impl GuestActivity {
    /// Reads a domain's state file. If it cannot be read, the guest counts as absent.
    pub(crate) fn read(path: &Path) -> Self {
        let text = || -> io::Result<String> {
            let mut bytes = Vec::new();
            File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        text().map_or(Self::Absent, |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let Some(state) = attribute(text, "<domstatus ", "state") else {
            return Self::Absent;
        };
        let job = attribute(text, "<job ", "async").unwrap_or_default();
        match state {
            "running" | "idle" | "no state" if job.starts_with("migration") => Self::Moving,
            "running" | "idle" | "no state" => Self::Running,
            "paused" if job == "migration out" => Self::Leaving,
            _ => Self::Still,
        }
    }
}

/// Returns the value of an attribute of the first element that starts with `element`.
///
/// libvirt escapes all text in the file, so `<` occurs only at the start of an element.
fn attribute<'a>(text: &'a str, element: &str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(element)?;
    let (attributes, _) = rest.split_once('>')?;
    let (_, value) = attributes.split_once(&format!("{name}='"))?;
    Some(value.split_once('\'')?.0)
}

#[cfg(test)]
mod tests {
    use super::GuestActivity;

    fn file(state: &str, job: &str) -> String {
        format!(
            "<!--\nWARNING: THIS IS AN AUTO-GENERATED FILE.\n-->\n\n<domstatus {state} pid='40'>\n  \
             <taint flag='custom-argv'/>\n{job}  <domain type='qemu' id='1'>\n    <name>async='migration'</name>\n"
        )
    }

    #[test]
    fn state_file_shows_activity() {
        let out = "  <job type='none' async='migration out' phase='perform3'>\n  </job>\n";
        let input = "  <job type='none' async='migration in' phase='finish3'/>\n";
        let dump = "  <job type='modify' async='dump'/>\n";
        for (state, job, expected) in [
            ("state='running' reason='booted'", "", GuestActivity::Running),
            ("state='running' reason='unpaused'", dump, GuestActivity::Running),
            ("state='running' reason='booted'", out, GuestActivity::Moving),
            ("state='running' reason='post-copy'", input, GuestActivity::Moving),
            ("state='paused' reason='migration'", out, GuestActivity::Leaving),
            ("state='paused' reason='migration'", input, GuestActivity::Still),
            ("state='paused' reason='user'", "", GuestActivity::Still),
            ("state='shutdown' reason='unknown'", "", GuestActivity::Still),
            ("state='pmsuspended' reason='unknown'", "", GuestActivity::Still),
        ] {
            assert_eq!(GuestActivity::parse(&file(state, job)), expected, "{state} {job}");
        }
    }

    #[test]
    fn unreadable_state_file_shows_no_guest() {
        for text in ["", "<domstatus", "<domain type='qemu'>", "<domstatus pid='1'>"] {
            assert_eq!(GuestActivity::parse(text), GuestActivity::Absent, "{text}");
        }
        assert_eq!(GuestActivity::read("/nonexistent".as_ref()), GuestActivity::Absent);
    }
}
