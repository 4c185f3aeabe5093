//! Errors of commands, and exit codes.

use std::{io, net::SocketAddr, path::PathBuf};

use drydock_runtime::chain;
use thiserror::Error;

/// Exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command has succeeded: all guests would move, or a check has found no error.
    Done,
    /// The command has failed.
    Error,
    /// The command line is wrong.
    Usage,
    /// A guest or a pod would block, or a check has found an error.
    Blocked,
    /// The drain did not end within the timeout, and continues.
    NotInTime,
    /// The drain was cancelled.
    Cancelled,
    /// The user lacks a right.
    NotAllowed,
    /// The API server could not be reached.
    NotReached,
    /// Nothing would block, but at least one guest would be shut down.
    WouldStop,
}

impl Exit {
    /// Returns the numeric exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Error => 1,
            Self::Usage => 2,
            Self::Blocked => 3,
            Self::NotInTime => 4,
            Self::Cancelled => 5,
            Self::NotAllowed => 6,
            Self::NotReached => 7,
            Self::WouldStop => 10,
        }
    }

    /// Returns the worse of two exit codes, in this order: an error, something blocked, cancelled, not in time,
    /// something would stop, done.
    pub(crate) fn worse(self, other: Self) -> Self {
        let rank = |exit: Self| match exit {
            Self::Done => 0,
            Self::WouldStop => 1,
            Self::NotInTime => 2,
            Self::Cancelled => 3,
            Self::Blocked => 4,
            Self::Error => 5,
            Self::NotReached => 6,
            Self::NotAllowed => 7,
            Self::Usage => 8,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

/// Reason why a command has failed.
#[derive(Debug, Error)]
pub(crate) enum CommandError {
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the request failed")]
    Request(#[source] kube::Error),
    #[error("{resource} cannot be read")]
    Read {
        resource: &'static str,
        group: String,
        #[source]
        error: kube::Error,
    },
    #[error("node {0} does not exist")]
    NoSuchNode(String),
    #[error("VirtualMachineInstance {0} does not exist")]
    NoSuchInstance(String),
    #[error("migration {0} does not exist")]
    NoSuchMigration(String),
    #[error("the table has no column {name}; columns: {allowed}")]
    NoSuchColumn { name: String, allowed: String },
    #[error("virtual machine {0} has no migration")]
    NoMigration(String),
    #[error("no node matches the label selector {0}")]
    NoNodes(String),
    #[error("the maintenance of node {0} is being ended; start a new maintenance when it has ended")]
    Ending(String),
    #[error("node {0} is not in maintenance")]
    NotInMaintenance(String),
    #[error("{} cannot be written", path.display())]
    Install {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("the console cannot listen on {address}")]
    Port {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the system provides no random numbers")]
    NoRandom,
    #[error("the output cannot be written")]
    Output(#[from] io::Error),
}

impl CommandError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Request(error) | Self::Read { error, .. } => match error {
                kube::Error::Api(status) if matches!(status.code, 401 | 403) => Exit::NotAllowed,
                kube::Error::Api(_) => Exit::Error,
                _ => Exit::NotReached,
            },
            _ => Exit::Error,
        }
    }

    /// Prints the error and a hint on standard error.
    pub(crate) fn report(&self) {
        eprintln!("error: {}", chain(self));
        if let Some(hint) = self.hint() {
            eprintln!("{hint}");
        }
    }

    /// Returns a hint at the remedy, if there is one.
    fn hint(&self) -> Option<String> {
        match self {
            Self::Read { resource, group, .. } if self.exit() == Exit::NotAllowed => {
                let group = if group.is_empty() {
                    String::new()
                } else {
                    format!(" of {group}")
                };
                Some(format!(
                    "hint: a ClusterRole with the verb list for {resource}{group} is needed"
                ))
            }
            Self::NoSuchNode(_) => Some("hint: kubectl get nodes".into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_exit_code_is_that_of_the_whole() {
        use Exit::{Blocked, Cancelled, Done, Error, NotInTime};
        for (all, expected) in [
            (&[][..], Done),
            (&[Done, NotInTime], NotInTime),
            (&[Cancelled, NotInTime, Done], Cancelled),
            (&[Blocked, Cancelled], Blocked),
            (&[Done, Error, Blocked], Error),
        ] {
            assert_eq!(all.iter().copied().fold(Done, Exit::worse), expected, "{all:?}");
        }
    }
}
