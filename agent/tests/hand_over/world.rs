//! Two nodes with a network between them, for consecutive hand-overs.

use std::{fs, path::Path};

use drydock_host::domain::{DomainState, PausedReason, ShutOffReason};
use serde_json::{Value, json};

use crate::{
    guest::GuestOutput,
    network::{HeldTraffic, Network},
    node::{Moving, Node, resumed},
    pod,
    reply::{Fate, OWN_SOCKET, ReplyGate},
};

/// Returns the number of runs of each fault.
pub(crate) fn runs() -> usize {
    number("DRYDOCK_HAND_OVERS", 2)
}

/// Returns the number that an environment variable sets, or `otherwise` if it is not set.
#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
pub(crate) fn number(variable: &str, otherwise: usize) -> usize {
    let set = std::env::var(variable).ok();
    set.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}, not a number"))
    })
}

/// Returns whether to skip a test, and prints the reason if so.
pub(crate) fn skipped(test: &str) -> bool {
    if !["/usr/local/bin", "/usr/bin"]
        .iter()
        .any(|folder| Path::new(folder).join("virsh").exists())
    {
        eprintln!("skipped: {test}: virsh is not installed");
        return true;
    }
    pod::skipped(test)
}

/// Returns the call that sets the peer of a session.
pub(crate) fn pair(migration: &str, peer: &Value) -> Value {
    json!({"pair": {"migration": migration, "peer": peer}})
}

/// Two nodes, the network between them, and the gate for replies.
pub(crate) struct HandOverWorld {
    pub(crate) source: Node,
    pub(crate) target: Node,
    pub(crate) reply: ReplyGate,
    pub(crate) network: Network,
}

impl HandOverWorld {
    /// Creates the nodes without a guest.
    pub(crate) async fn new() -> Self {
        let (source, mut target) = tokio::join!(Node::new(), Node::new());
        let reply = ReplyGate::before(&target.pod);
        target.socket = OWN_SOCKET;
        // The result of `prepare` contains the address of the target's tunnel.
        let address = target.tunnel.prepare("0", "target").await["address"].clone();
        target.tunnel.done(json!({"close": {"migration": "0"}})).await;
        let network = Network::to(address.as_str().unwrap().parse().unwrap()).await;
        Self {
            source,
            target,
            reply,
            network,
        }
    }

    /// Starts a guest at the source and prepares the sessions. Returns the migration's UID.
    pub(crate) async fn prepare(&mut self) -> String {
        self.source.run().await;
        self.pair().await
    }

    /// Prepares and pairs the sessions. Returns the migration's UID.
    pub(crate) async fn pair(&mut self) -> String {
        let migration = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let migration = migration.trim();
        GuestOutput::forget(&self.target.pod);
        self.reply.decide(Fate::Passes);
        self.network.hold(HeldTraffic::Nothing);
        self.network.expect_migration();
        let mut target = self.target.tunnel.prepare(migration, "target").await;
        let source = self.source.tunnel.prepare(migration, "source").await;
        target["address"] = json!(self.network.address.to_string());
        self.target.tunnel.done(pair(migration, &source)).await;
        self.source.tunnel.done(pair(migration, &target)).await;
        let connected = |session: &Value| session["connected"] == true;
        self.source.tunnel.until(migration, connected).await;
        self.target.tunnel.until(migration, connected).await;
        migration.to_owned()
    }

    /// Migrates the guest as agents do, and waits until libvirt reports success.
    pub(crate) async fn moves(&mut self) {
        let moved = Moving::begin(&self.source.guest).ended().await;
        moved.unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.logs(), self.target.pod.log()));
    }

    /// Migrates the guest until the reply is held that confirms that the target has the complete guest.
    pub(crate) async fn moves_up_to_the_reply(&mut self) -> Moving {
        self.reply.decide(Fate::Waits);
        let count = self.reply.count();
        let moving = Moving::begin(&self.source.guest);
        self.reply.came_after(count).await;
        moving
    }

    /// Migrates the guest until its source has released it, without a message of the release at the target.
    pub(crate) async fn moves_without_release(&mut self, migration: &str) {
        let moving = self.moves_up_to_the_reply().await;
        self.network.hold(HeldTraffic::ToTarget);
        self.reply.decide(Fate::Passes);
        assert_eq!(moving.ended().await, Ok(()));
        let consumed = |session: &Value| session["reply"] == "consumed";
        let session = self.source.tunnel.until(migration, consumed).await;
        assert_eq!(session["acknowledged"], false);
    }

    /// Resumes the guest as agents do, who know from libvirt that it has left its source.
    pub(crate) async fn is_resumed_by_agent(&mut self) {
        assert_eq!(self.source.state().await, DomainState::ShutOff(ShutOffReason::Migrated));
        self.target.guest.resume().await.unwrap();
        self.target.runs().await;
    }

    /// Waits until the target has taken the guest over with this proof, and the source knows it.
    pub(crate) async fn is_taken_over(&mut self, migration: &str, proof: &str) {
        let acknowledged = |session: &Value| session["acknowledged"] == true;
        let source = self.source.tunnel.until(migration, acknowledged).await;
        let target = self.target.tunnel.now(migration).await;
        assert_eq!(source["released"], proof);
        assert_eq!((&target["released"], &target["resumed"]), (&json!(proof), &json!(true)));
    }

    /// Asserts that the target has the complete guest, and has never run it.
    pub(crate) async fn stands_still_at_target(&mut self, migration: &str) {
        let session = self.target.tunnel.now(migration).await;
        assert_eq!(
            (&session["released"], &session["resumed"]),
            (&Value::Null, &json!(false))
        );
        assert_eq!(self.target.state().await, DomainState::Paused(PausedReason::User));
        assert_eq!(self.target.status_in_qemu().await, "paused");
        assert!(self.target.guest_output().is_nothing());
    }

    /// Returns the logs of the tunnels.
    pub(crate) fn logs(&self) -> String {
        format!(
            "source:\n{}\ntarget:\n{}",
            self.source.tunnel.log(),
            self.target.tunnel.log()
        )
    }

    /// Ends a hand-over after which the guest continues to run. Asserts that there was only one guest at all times.
    pub(crate) async fn end_after_one_guest(&mut self, migration: &str) {
        self.close(migration).await;
        let (left, came) = (self.source.clear().await, self.target.clear().await);
        assert_eq!(
            (resumed(&left), resumed(&came)),
            (0, 1),
            "{left:?} {came:?}\n{}",
            self.logs()
        );
        let (there, here) = (self.source.guest_output(), self.target.guest_output());
        println!("one guest, which counted to {}", there.and_then(&here));
    }

    /// Closes the sessions of a migration.
    pub(crate) async fn close(&mut self, migration: &str) {
        for node in [&mut self.source, &mut self.target] {
            node.tunnel.done(json!({"close": {"migration": migration}})).await;
        }
    }
}
