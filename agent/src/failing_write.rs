//! Failing writes to the API server, for the tests of the tasks that send these writes.

use std::{fmt, time::Duration};

use drydock_runtime::{
    clock,
    fake::{ReceivedRequest, WriteFault},
};
use serde_json::Value;

/// A write of a task that fails once with a fault.
pub(crate) struct FailingWrite {
    write: &'static str,
    fault: WriteFault,
    failed_at: Option<clock::Instant>,
    /// Whether the write was sent again.
    is_repeated: bool,
}

impl fmt::Display for FailingWrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} of the write {}", self.fault, self.write)
    }
}

impl FailingWrite {
    /// Returns every combination of these writes with a fault.
    pub(crate) fn each(writes: &[&'static str]) -> Vec<Self> {
        let faults = |write| WriteFault::ALL.map(|fault| Self::new(write, fault));
        writes.iter().copied().flat_map(faults).collect()
    }

    fn new(write: &'static str, fault: WriteFault) -> Self {
        Self {
            write,
            fault,
            failed_at: None,
            is_repeated: false,
        }
    }

    /// Responds to a write request called `name`.
    ///
    /// The first request for the failing write gets the fault. Every other request is executed by `execute`, which
    /// returns the object after the write. Returns whether the request succeeded. Panics if the failed write is
    /// repeated without a pause.
    pub(crate) fn respond(
        &mut self,
        request: ReceivedRequest,
        name: &str,
        execute: impl FnOnce(&ReceivedRequest) -> Value,
    ) -> bool {
        if name == self.write && self.failed_at.is_none() {
            self.failed_at = Some(clock::Instant::now());
            if self.fault.is_executed() {
                execute(&request);
            }
            request.fail(self.fault);
            return false;
        }
        if let Some(failed_at) = self.failed_at.filter(|_| name == self.write && !self.is_repeated) {
            assert!(failed_at.elapsed() > Duration::ZERO, "{self}: repeated at once");
            self.is_repeated = true;
        }
        let stored = execute(&request);
        request.with(&stored);
        true
    }

    /// Returns a copy of the write that has not failed yet.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.write, self.fault)
    }

    /// Returns whether the write has failed and was then sent again, or was executed despite the fault.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_repeated || self.has_failed() && self.fault.is_executed()
    }

    /// Returns whether the write has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    /// Panics unless the write has failed and was then sent again, or was executed despite the fault.
    pub(crate) fn assert_settled(&self) {
        assert!(self.has_failed(), "{self}: the write was never sent");
        assert!(self.is_settled(), "{self}: not repeated");
    }
}
