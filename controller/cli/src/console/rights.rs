//! What the user may do. A button for something else stays visible, disabled, and names the right.

use std::collections::BTreeMap;

use drydock_api::maintenance::{Group, PLURAL};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};

/// Something that the console does for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// Starts the maintenance of a node.
    Start,
    /// Ends it.
    Stop,
}

impl Action {
    const ALL: [Self; 2] = [Self::Start, Self::Stop];

    fn verb(self) -> &'static str {
        match self {
            Self::Start => "create",
            Self::Stop => "delete",
        }
    }

    /// Returns what a user lacks who may not do it.
    fn missing(self) -> String {
        format!(
            "you lack the right to {} {PLURAL} of {}",
            self.verb(),
            Group::Medik8s.as_str()
        )
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

    /// Asks the API server what the user may do. What it does not answer counts as allowed: the request itself will show.
    pub(super) async fn review(client: &Client) -> Self {
        let reviews = Action::ALL.map(|action| async move {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(Group::Medik8s.as_str().into()),
                        resource: Some(PLURAL.into()),
                        verb: Some(action.verb().into()),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let api = Api::<SelfSubjectAccessReview>::all(client.clone());
            let allowed = match api.create(&PostParams::default(), &review).await {
                Ok(review) => review.status.is_none_or(|status| status.allowed),
                Err(_) => true,
            };
            (!allowed).then(|| (action, action.missing()))
        });
        let missing = futures::future::join_all(reviews).await;
        Self(missing.into_iter().flatten().collect())
    }
}
