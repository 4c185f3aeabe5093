//! Frozen file systems of a guest, in its instance's status.
//!
//! A guest whose file systems are frozen writes nothing, and soon does nothing, until they are thawed. So the time of the
//! thaw is in the status before the freeze is requested, and stays there until the thaw has succeeded: an agent that
//! restarts, or to which the guest has moved, thaws it too.

use drydock_api::kubevirt::VirtualMachineInstanceStatus;
use jiff::Timestamp;

use crate::guest_agent::FROZEN;

/// Records that the file systems are frozen, or about to be, and when they are thawed.
pub fn set(status: &mut VirtualMachineInstanceStatus, thaw_at: Option<Timestamp>) {
    status.fs_freeze_status = Some(FROZEN.to_owned());
    status.drydock.get_or_insert_default().thaw_at = thaw_at;
}

/// Records that the file systems are not frozen.
pub fn clear(status: &mut VirtualMachineInstanceStatus) {
    status.fs_freeze_status = None;
    if let Some(drydock) = &mut status.drydock {
        drydock.thaw_at = None;
    }
}

/// Copies the state from an earlier report.
pub(super) fn carry(wanted: &mut VirtualMachineInstanceStatus, before: &VirtualMachineInstanceStatus) {
    if is_frozen(before) {
        set(wanted, thaw_at(before));
    }
}

/// Returns whether the file systems are frozen.
pub fn is_frozen(status: &VirtualMachineInstanceStatus) -> bool {
    status.fs_freeze_status.as_deref() == Some(FROZEN)
}

/// Returns when the file systems are thawed.
pub fn thaw_at(status: &VirtualMachineInstanceStatus) -> Option<Timestamp> {
    let drydock = status.drydock.as_ref()?;
    drydock.thaw_at.filter(|_| is_frozen(status))
}

/// An earlier freeze, according to the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierFreeze {
    /// The status shows no earlier freeze.
    None,
    /// The freeze lasts, unless the guest agent reports otherwise: file systems may have been thawed without the status
    /// showing it.
    Lasts,
    /// The thaw of the freeze is due. A thaw that has failed remains due.
    ThawDue,
}

/// Returns the earlier freeze that the status shows when another freeze is requested.
pub fn earlier(status: &VirtualMachineInstanceStatus, now: Timestamp) -> EarlierFreeze {
    match (is_frozen(status), thaw_at(status)) {
        (false, _) => EarlierFreeze::None,
        (true, Some(at)) if at <= now => EarlierFreeze::ThawDue,
        (true, _) => EarlierFreeze::Lasts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_freeze_lasts_until_the_thaw_is_due() {
        let at = |second| Timestamp::from_second(second).ok();
        for (thaw_at, expected) in [
            (None, EarlierFreeze::Lasts),
            (at(61), EarlierFreeze::Lasts),
            (at(60), EarlierFreeze::ThawDue),
            (at(59), EarlierFreeze::ThawDue),
        ] {
            let mut status = VirtualMachineInstanceStatus::default();
            let now = Timestamp::from_second(60).unwrap();
            assert_eq!(earlier(&status, now), EarlierFreeze::None);
            set(&mut status, thaw_at);
            assert_eq!(earlier(&status, now), expected, "{thaw_at:?}");
        }
    }

    #[test]
    fn freeze_is_carried_until_cleared() {
        let at = Timestamp::from_second(60).ok();
        let mut before = VirtualMachineInstanceStatus::default();
        assert_eq!((is_frozen(&before), thaw_at(&before)), (false, None));
        set(&mut before, at);
        assert_eq!((is_frozen(&before), thaw_at(&before)), (true, at));
        let mut wanted = VirtualMachineInstanceStatus::default();
        carry(&mut wanted, &before);
        assert_eq!(wanted, before);
        clear(&mut wanted);
        assert_eq!((is_frozen(&wanted), thaw_at(&wanted)), (false, None));
        let mut never = VirtualMachineInstanceStatus::default();
        carry(&mut never, &wanted);
        assert_eq!(never, VirtualMachineInstanceStatus::default());
    }
}
