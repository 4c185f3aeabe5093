//! End of a domain's log.
//!
//! libvirt writes the reason why it stopped a QEMU to the log, and QEMU writes its last messages. The log outlives
//! libvirtd and the domain's definition.
//!
//! ```text
//! 2026-11-21 11:30:01.120+0000: starting up libvirt version: 11.3.0, ...
//! LC_ALL=C \
//! ...
//! -msg timestamp=on
//! 2026-11-21T11:30:02.310446Z qemu-system-x86_64: terminating on signal 15 from pid 12
//! 2026-11-21 11:30:02.512+0000: shutting down, reason=destroyed
//! ```

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use crate::domain_state::OffReason;

/// Maximum number of bytes that are read from the end of the log.
const TAIL: u64 = 8 * 1024;
/// Maximum number of QEMU's messages that are kept. The next constant is the maximum length of a message in characters.
const LINES: usize = 3;
const LINE: usize = 300;

/// Data from the log about the last process of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DomainLog {
    /// Reason why libvirt stopped the process or found that it had ended.
    pub(crate) reason: Option<OffReason>,
    /// Last messages of QEMU.
    pub(crate) last_messages: Vec<String>,
}

impl DomainLog {
    /// Reads the end of a log. The result is empty if the log cannot be read.
    pub(crate) fn read(path: &Path) -> Self {
        tail(path).map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        // Only the part after the last start belongs to the last process.
        let last = text.rfind(": starting up libvirt version").map_or(0, |at| at);
        let mut log = Self::default();
        for line in text[last..].lines() {
            if let Some((_, reason)) = line.split_once(": shutting down, reason=") {
                log.reason = Some(OffReason::from_name(reason.trim()));
            } else if let Some(message) = qemu_message(line) {
                // Control characters are removed, because QEMU's message may contain text from the guest.
                log.last_messages
                    .push(message.chars().filter(|c| !c.is_control()).take(LINE).collect());
            }
        }
        log.last_messages.drain(..log.last_messages.len().saturating_sub(LINES));
        log
    }
}

/// Returns QEMU's message in a line, with the name of QEMU; `None` if the line is not a message of QEMU.
fn qemu_message(line: &str) -> Option<&str> {
    let (stamp, message) = line.split_once(' ')?;
    (stamp.ends_with('Z') && message.starts_with("qemu-")).then_some(message)
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::DomainLog;
    use crate::domain_state::OffReason;

    const LOG: &str = "\
2026-11-21 11:30:01.120+0000: starting up libvirt version: 11.3.0, package: 3, qemu version: 10.0.3
/usr/bin/qemu-system-x86_64 \\
-msg timestamp=on
2026-11-21T11:30:02.310446Z qemu-system-x86_64: terminating on signal 15 from pid 12 (libvirtd)
2026-11-21 11:30:02.512+0000: shutting down, reason=destroyed
";

    #[test]
    fn reason_and_last_messages_are_found() {
        let log = DomainLog::parse(LOG);
        assert_eq!(log.reason, Some(OffReason::Destroyed));
        assert_eq!(
            log.last_messages,
            ["qemu-system-x86_64: terminating on signal 15 from pid 12 (libvirtd)"]
        );
    }

    #[test]
    fn log_of_earlier_process_is_ignored() {
        let twice = format!("{LOG}2026-11-21 11:31:00.000+0000: starting up libvirt version: 11.3.0\n-msg\n");
        assert_eq!(DomainLog::parse(&twice), DomainLog::default());
    }

    #[test]
    fn log_excerpt_is_bounded() {
        let long = format!("2026Z qemu-system-x86_64: {}\n", "\u{1b}é".repeat(5000)).repeat(9);
        let log = DomainLog::parse(&long);
        assert_eq!(log.last_messages.len(), 3);
        assert!(
            log.last_messages
                .iter()
                .all(|line| line.chars().count() == 300 && !line.contains('\u{1b}'))
        );
    }

    #[test]
    fn missing_log_is_empty() {
        assert_eq!(DomainLog::read("/nonexistent/log".as_ref()), DomainLog::default());
    }
}
