//! The rights of the user. A button for an action that is not allowed stays visible, is disabled, and names the missing
//! right.

use std::collections::BTreeMap;

use drydock_api::maintenance::{Group, PLURAL};
use kube::Client;

use crate::read::is_allowed_on;

/// An action of the console for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UserAction {
    /// Starts the maintenance of a node.
    Start,
    /// Ends the maintenance of a node.
    Stop,
    /// Cancels a migration.
    Cancel,
    /// Opens the serial console of a guest.
    Console,
    /// Opens the display of a guest.
    Display,
}

/// API group of the consoles and displays of guests.
const SUBRESOURCES: &str = "subresources.kubevirt.io";

impl UserAction {
    const ALL: [Self; 5] = [Self::Start, Self::Stop, Self::Cancel, Self::Console, Self::Display];

    /// Returns whether the action concerns the guest of one virtual machine.
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

/// Rights of the user, as the actions that are not possible, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights(BTreeMap<UserAction, String>);

impl Rights {
    /// Returns rights that allow no action, for this reason.
    #[cfg(test)]
    pub(super) fn none(why: &str) -> Self {
        Self(UserAction::ALL.map(|action| (action, why.to_owned())).into())
    }

    /// Returns the reason why an action is not possible. Returns `None` if it is possible.
    pub(super) fn missing(&self, action: UserAction) -> Option<&str> {
        self.0.get(&action).map(String::as_str)
    }

    /// Reviews the rights of the user. The actions on a guest are reviewed if its `machine` is given as namespace and
    /// name, otherwise the actions on nodes and migrations. If the review fails, the action counts as allowed, because
    /// the API server will decide on the request itself.
    ///
    /// With `read_only`, which is the reason, only the display is allowed. Opening a serial console would take it from
    /// its current client.
    pub(super) async fn review(client: &Client, machine: Option<(&str, &str)>, read_only: Option<&str>) -> Self {
        let reviews = UserAction::ALL.map(|action| async move {
            if let Some(why) = read_only.filter(|_| action != UserAction::Display) {
                return Some((action, why.to_owned()));
            }
            // The page of a guest does not start maintenance, and other pages do not open guests.
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
