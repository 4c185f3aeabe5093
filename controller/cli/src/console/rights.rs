//! The rights of the user. A button for an action that is not allowed stays visible, is disabled, and names the missing
//! right.

use std::collections::BTreeMap;

use drydock_api::maintenance::{Group, PLURAL};
use kube::Client;

use crate::read::is_allowed_on;

/// Something that the console does for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UserAction {
    /// Starts the maintenance of a node.
    Start,
    /// Ends it.
    Stop,
    /// Cancels a migration.
    Cancel,
    /// Opens the serial console of a guest.
    Console,
    /// Opens the display of a guest.
    Display,
}

/// Group of the consoles and displays of guests.
const SUBRESOURCES: &str = "subresources.kubevirt.io";

impl UserAction {
    const ALL: [Self; 5] = [Self::Start, Self::Stop, Self::Cancel, Self::Console, Self::Display];

    /// Returns whether it is about the guest of one virtual machine.
    fn is_of_guest(self) -> bool {
        matches!(self, Self::Console | Self::Display)
    }

    /// Returns the verb, the resource and its API group.
    fn needs(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Start => ("create", PLURAL, Group::Medik8s.as_str()),
            Self::Stop => ("delete", PLURAL, Group::Medik8s.as_str()),
            Self::Cancel => ("delete", "virtualmachineinstancemigrations", "kubevirt.io"),
            Self::Console => ("get", "virtualmachineinstances/console", SUBRESOURCES),
            Self::Display => ("get", "virtualmachineinstances/vnc", SUBRESOURCES),
        }
    }

    /// Returns the message that names the missing right.
    fn missing(self) -> String {
        let (verb, resource, group) = self.needs();
        format!("you lack the right to {verb} {resource} of {group}")
    }
}

/// The rights of the user, as the actions that are not possible, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights(BTreeMap<UserAction, String>);

impl Rights {
    /// Returns rights that allow nothing, for this reason.
    #[cfg(test)]
    pub(super) fn none(why: &str) -> Self {
        Self(UserAction::ALL.map(|action| (action, why.to_owned())).into())
    }

    /// Returns why an action is not possible; `None` if it is.
    pub(super) fn missing(&self, action: UserAction) -> Option<&str> {
        self.0.get(&action).map(String::as_str)
    }

    /// Reviews what the user may do; with a guest if the namespace and the name of its `machine` are known. Where the API
    /// server does not respond, it counts as allowed: the request itself will show.
    ///
    /// With `read_only`, which names the reason, the display alone is left: opening a serial console takes it from the client that
    /// has it.
    pub(super) async fn review(client: &Client, machine: Option<(&str, &str)>, read_only: Option<&str>) -> Self {
        let reviews = UserAction::ALL.map(|action| async move {
            if let Some(why) = read_only.filter(|_| action != UserAction::Display) {
                return Some((action, why.to_owned()));
            }
            // A page of a guest starts no maintenance, and the others open no guest.
            if action.is_of_guest() != machine.is_some() {
                return None;
            }
            let allowed = is_allowed_on(client, action.needs(), machine).await.unwrap_or(true);
            (!allowed).then(|| (action, action.missing()))
        });
        let missing = futures::future::join_all(reviews).await;
        Self(missing.into_iter().flatten().collect())
    }
}
