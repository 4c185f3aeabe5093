//! Closes sessions of the tunnels that no migration needs any more: those of migrations that are over and settled here,
//! or deleted.
//!
//! A watch that does not show a migration is no proof that there is none: the list with which it begins comes from the
//! API server's cache, which may be older than the session, as after a restart of this agent during a migration. Such a
//! session is closed only if the API server, read past its cache, has no migration that needs it.

use std::{collections::BTreeSet, time::Duration};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_runtime::{Backoff, chain, clock};
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::task::JoinSet;
use tracing::warn;

use super::{concerns, migration_watches::MigrationWatches};
use crate::tunnel::{
    client::{TunnelClient, TunnelError},
    local::Role,
    tunnels::KnownSessions,
};

/// Pause before the API server is read again, after a failure or while the watch does not show what it has: first and
/// maximum.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Sessions whose migrations no watch shows, by the UIDs of these.
type Unconfirmed = Vec<(String, Role, TunnelClient)>;
/// Sessions that no migration needs.
type Unneeded = Vec<(String, TunnelClient)>;

/// The closing of sessions that no task serves.
pub(super) struct UnneededSessions {
    client: Client,
    node: String,
    /// Calls to tunnels.
    closing: JoinSet<Result<(), TunnelError>>,
    /// The read of the API server, at most one at a time, which returns the sessions that no migration needs.
    reading: JoinSet<kube::Result<Unneeded>>,
    /// When the API server may be read again.
    again: Option<clock::Instant>,
    backoff: Backoff,
}

impl UnneededSessions {
    /// Closes sessions of `node` only.
    pub(super) fn new(client: Client, node: String) -> Self {
        Self {
            client,
            node,
            closing: JoinSet::new(),
            reading: JoinSet::new(),
            again: None,
            backoff: Backoff::new(AGAIN.0, AGAIN.1),
        }
    }

    /// Begins to close the sessions of sides that are not `present`. Sides are named by the UID of their migration and
    /// by whether they are the source.
    pub(super) fn close(
        &mut self,
        known: &KnownSessions,
        present: &BTreeSet<(String, bool)>,
        watches: &MigrationWatches,
    ) {
        let mut unconfirmed = Unconfirmed::new();
        for (uid, session) in &known.sessions {
            let role = session.state.role;
            // A side of a later version may be needed for a purpose that only that version knows.
            if role == Role::Unknown || present.contains(&(uid.clone(), role == Role::Source)) {
                continue;
            }
            let mut shown = watches.migrations(role).into_iter();
            match shown.find(|migration| migration.metadata.uid.as_ref() == Some(uid)) {
                // It has been shown since then: a task is about to start.
                Some(migration) if concerns(&migration, role) => {}
                // No later state of it needs the session again.
                Some(_) => self.close_one(uid.clone(), session.tunnel.clone()),
                None => unconfirmed.push((uid.clone(), role, session.tunnel.clone())),
            }
        }
        self.confirm(unconfirmed);
    }

    /// Begins to read which of these sessions are needed, unless that is not due yet.
    fn confirm(&mut self, unconfirmed: Unconfirmed) {
        if unconfirmed.is_empty() {
            self.again = None;
            self.backoff.reset();
        } else if self.reading.is_empty() && self.again.is_none() {
            let (client, node) = (self.client.clone(), self.node.clone());
            self.reading.spawn(read(client, node, unconfirmed));
        }
    }

    fn close_one(&mut self, uid: String, tunnel: TunnelClient) {
        self.closing.spawn(async move { tunnel.close(&uid).await });
    }

    /// Waits until [`close`](Self::close) has to be called again, besides changes of sessions and watches. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Some(_) = self.closing.join_next() => {}
            Some(read) = self.reading.join_next() => self.take_in(read.ok()),
            () = clock::sleep_until_instant(self.again) => self.again = None,
        }
    }

    /// Begins to close unneeded sessions. `None` is a read that has panicked.
    fn take_in(&mut self, read: Option<kube::Result<Unneeded>>) {
        match read {
            Some(Ok(unneeded)) => {
                for (uid, tunnel) in unneeded {
                    self.close_one(uid, tunnel);
                }
            }
            Some(Err(error)) if self.backoff.is_reset() => {
                warn!(error = %chain(&error), "cannot read whether a session is needed, retrying");
            }
            Some(Err(_)) | None => {}
        }
        // Until then a tunnel lists a session no more, or a watch shows its migration.
        self.again = Some(clock::Instant::now() + self.backoff.delay());
    }
}

/// Reads which sessions no migration needs, past every cache, with one list per role.
async fn read(client: Client, node: String, sessions: Unconfirmed) -> kube::Result<Unneeded> {
    let api = Api::<VirtualMachineInstanceMigration>::all(client);
    let mut unneeded = Unneeded::new();
    for role in [Role::Source, Role::Target] {
        let of_role: Vec<_> = sessions.iter().filter(|(_, of, _)| *of == role).collect();
        if of_role.is_empty() {
            continue;
        }
        // The node of a side is known before its session is created.
        let selector = format!("status.{}.node={node}", role.as_str());
        let found = api.list(&ListParams::default().fields(&selector)).await?.items;
        let needed: BTreeSet<String> = found
            .iter()
            .filter(|migration| concerns(migration, role))
            .filter_map(ResourceExt::uid)
            .collect();
        let others = of_role.into_iter().filter(|(uid, ..)| !needed.contains(uid));
        unneeded.extend(others.map(|(uid, _, tunnel)| (uid.clone(), tunnel.clone())));
    }
    Ok(unneeded)
}

#[cfg(test)]
mod tests;
