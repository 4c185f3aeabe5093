//! Closes the sessions of the tunnels that no migration needs any more.
//!
//! A session is no longer needed if its migration is over and settled on this side, or was deleted. A migration may
//! exist although the watch does not show it: the list with which the watch starts comes from the API server's cache.
//! This list may be older than the session, for example after a restart of this agent during a migration. A session is
//! therefore closed only if the API server, read past its cache, has no migration that needs the session.

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

/// Minimum and maximum pause before the API server is read again.
///
/// The API server is read again after a failure, and as long as a session remains whose migration no watch shows.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Sessions of migrations that no watch shows, with the UID of the migration and the role of the session.
type Unconfirmed = Vec<(String, Role, TunnelClient)>;
/// Sessions that no migration needs, with the UID of the migration.
type Unneeded = Vec<(String, TunnelClient)>;

/// Closes sessions that no task serves.
pub(super) struct UnneededSessions {
    client: Client,
    node: String,
    /// Pending calls to tunnels.
    closing: JoinSet<Result<(), TunnelError>>,
    /// Pending read of the API server, at most one at a time. It returns the sessions that no migration needs.
    reading: JoinSet<kube::Result<Unneeded>>,
    /// Time before which the API server is not read again.
    again: Option<clock::Instant>,
    backoff: Backoff,
}

impl UnneededSessions {
    /// Creates the value for the sessions of `node`.
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

    /// Starts to close the sessions of sides that are not `present`.
    ///
    /// A side is identified by the UID of its migration and by whether it is the source.
    pub(super) fn close(
        &mut self,
        known: &KnownSessions,
        present: &BTreeSet<(String, bool)>,
        watches: &MigrationWatches,
    ) {
        let mut unconfirmed = Unconfirmed::new();
        for (uid, session) in &known.sessions {
            let role = session.state.role;
            // A later version may need the session of an unknown role for a purpose that only that version knows.
            if role == Role::Unknown || present.contains(&(uid.clone(), role == Role::Source)) {
                continue;
            }
            let mut shown = watches.migrations(role).into_iter();
            match shown.find(|migration| migration.metadata.uid.as_ref() == Some(uid)) {
                // The watch shows the migration now, so a task is about to start.
                Some(migration) if concerns(&migration, role) => {}
                // No later state of the migration needs the session again.
                Some(_) => self.close_one(uid.clone(), session.tunnel.clone()),
                None => unconfirmed.push((uid.clone(), role, session.tunnel.clone())),
            }
        }
        self.confirm(unconfirmed);
    }

    /// Starts to read which of these sessions are needed, unless a read is running or not due yet.
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

    /// Waits until [`close`](Self::close) must be called again, besides changes of sessions and watches. Cancel safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Some(_) = self.closing.join_next() => {}
            Some(read) = self.reading.join_next() => self.take_in(read.ok()),
            () = clock::sleep_until_instant(self.again) => self.again = None,
        }
    }

    /// Starts to close unneeded sessions. `None` means that the read has panicked.
    fn take_in(&mut self, read: Option<kube::Result<Unneeded>>) {
        match read {
            Some(Ok(unneeded)) => {
                for (uid, tunnel) in unneeded {
                    self.close_one(uid, tunnel);
                }
            }
            Some(Err(error)) if self.backoff.is_reset() => {
                warn!(error = %chain(&error), "could not determine whether a session is still needed, retrying");
            }
            Some(Err(_)) | None => {}
        }
        // By then, the tunnels may no longer list the sessions, or a watch may show their migrations.
        self.again = Some(clock::Instant::now() + self.backoff.delay());
    }
}

/// Reads which sessions no migration needs, past every cache, with one list request per role.
async fn read(client: Client, node: String, sessions: Unconfirmed) -> kube::Result<Unneeded> {
    let api = Api::<VirtualMachineInstanceMigration>::all(client);
    let mut unneeded = Unneeded::new();
    for role in [Role::Source, Role::Target] {
        let of_role: Vec<_> = sessions.iter().filter(|(_, of, _)| *of == role).collect();
        if of_role.is_empty() {
            continue;
        }
        // The node of a side is set before the session of the side is created.
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
