//! Writes to the API server that fail, for the tests of the tasks that send them.

use std::{fmt, time::Duration};

use drydock_runtime::{
    clock,
    fake::{ReceivedRequest, WriteFault},
};
use serde_json::Value;

/// A write of a task that fails once, in one way.
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
    /// Returns each of these writes with each fault.
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

    /// Responds to the write of this name: the first one of the name that fails does so, every other one is executed by
    /// `execute`, which returns the object as it is then. Returns whether it succeeded.
    ///
    /// Panics if the write is repeated without a pause.
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

    /// Returns the same write, before it fails.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.write, self.fault)
    }

    /// Returns whether the write has failed, and was sent again or executed nevertheless.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_repeated || self.has_failed() && self.fault.is_executed()
    }

    /// Returns whether the write has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    /// Panics unless the write has failed, and was sent again or executed nevertheless.
    pub(crate) fn assert_settled(&self) {
        assert!(self.has_failed(), "{self}: the write was never sent");
        assert!(self.is_settled(), "{self}: not repeated");
    }
}
