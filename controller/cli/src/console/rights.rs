//! What the user may do. A button for something else stays visible, disabled, and names the right.

use std::collections::BTreeMap;

use drydock_api::maintenance::{Group, PLURAL};
use kube::Client;

use crate::read::is_allowed;

/// Something that the console does for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// Starts the maintenance of a node.
    Start,
    /// Ends it.
    Stop,
    /// Cancels a migration.
    Cancel,
}

impl Action {
    const ALL: [Self; 3] = [Self::Start, Self::Stop, Self::Cancel];

    /// Returns the verb, the resource and its API group.
    fn needs(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Start => ("create", PLURAL, Group::Medik8s.as_str()),
            Self::Stop => ("delete", PLURAL, Group::Medik8s.as_str()),
            Self::Cancel => ("delete", "virtualmachineinstancemigrations", "kubevirt.io"),
        }
    }

    /// Returns what a user lacks who may not do it.
    fn missing(self) -> String {
        let (verb, resource, group) = self.needs();
        format!("you lack the right to {verb} {resource} of {group}")
    }
}

/// What the user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights(BTreeMap<Action, String>);

impl Rights {
    /// The rights of somebody who is only to see.
    pub(super) fn none(why: &str) -> Self {
        Self(Action::ALL.map(|action| (action, why.to_owned())).into())
    }

    /// Returns why an action is not possible; `None` if it is.
    pub(super) fn missing(&self, action: Action) -> Option<&str> {
        self.0.get(&action).map(String::as_str)
    }

    /// Reviews what the user may do. Where the API server does not respond, it counts as allowed: the request itself will show.
    pub(super) async fn review(client: &Client) -> Self {
        let reviews = Action::ALL.map(|action| async move {
            let (verb, resource, group) = action.needs();
            let allowed = is_allowed(client, verb, resource, group).await.unwrap_or(true);
            (!allowed).then(|| (action, action.missing()))
        });
        let missing = futures::future::join_all(reviews).await;
        Self(missing.into_iter().flatten().collect())
    }
}
