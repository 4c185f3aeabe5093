//! Tests with guests that real tunnels hand over from one libvirt to another while faults occur.
//!
//! At any time, the guest runs on at most one side. At the end, it runs on exactly one. If a fault would result in two
//! guests when libvirt decides when the guest continues, it is tested in that mode as well.
//!
//! Tests that need root or programs that are not installed print a message and pass. `DRYDOCK_HAND_OVERS` is the number
//! of runs of each fault (2), `DRYDOCK_REPLY_DELAY` the delay of a late reply in seconds (3).

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

#[path = "hand_over/guest.rs"]
mod guest;
#[path = "hand_over/network.rs"]
mod network;
#[path = "hand_over/node.rs"]
mod node;
#[path = "../host/tests/pod/mod.rs"]
#[expect(dead_code, reason = "not all of the pod's helpers are needed here")]
mod pod;
#[path = "hand_over/post_copy.rs"]
mod post_copy;
#[path = "hand_over/reply.rs"]
mod reply;
#[path = "hand_over/tunnel.rs"]
mod tunnel;
#[path = "hand_over/world.rs"]
mod world;

use std::time::Duration;

use drydock_host::domain::{DomainState, PausedReason, RunningReason, ShutOffReason};
use network::HeldTraffic;
use nix::sys::signal::{Signal, kill};
use node::{Moving, resumed};
use reply::Fate;
use serde_json::{Value, json};
use tunnel::Tunnel;
use world::{HandOverWorld, number, pair, runs, skipped};

/// Returns the time for which a late reply is held.
///
/// The tests do not measure this time: a component would only act by itself after a timeout, which may be longer than a
/// test may take.
fn delay() -> Duration {
    Duration::from_secs(u64::try_from(number("DRYDOCK_REPLY_DELAY", 3)).unwrap())
}

#[tokio::test]
async fn a_guest_goes_on_once_and_misses_nothing() {
    if skipped("a_guest_goes_on_once_and_misses_nothing") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for _ in 0..runs() {
        let migration = world.prepare().await;
        world.moves().await;
        world.is_taken_over(&migration, "ReplyConsumed").await;
        world.target.runs().await;
        assert_eq!(
            world.target.state().await,
            DomainState::Running(RunningReason::Unpaused)
        );
        assert_eq!(
            world.source.state().await,
            DomainState::ShutOff(ShutOffReason::Migrated)
        );
        world.end_after_one_guest(&migration).await;
    }
}

/// Ways in which a reply to the source's libvirtd is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The connection ends instead of delivering the reply.
    AtOnce,
    /// The connection ends after a delay.
    Late,
    /// The source's tunnel is killed.
    WithTunnel,
}

pub(crate) const LOSSES: [Loss; 3] = [Loss::AtOnce, Loss::Late, Loss::WithTunnel];

impl Loss {
    pub(crate) fn fate(self) -> Fate {
        match self {
            Self::AtOnce => Fate::IsLost,
            Self::Late | Self::WithTunnel => Fate::Waits,
        }
    }

    /// Loses the waiting reply.
    pub(crate) async fn happen(self, world: &mut HandOverWorld) {
        match self {
            Self::AtOnce => {}
            Self::Late => world.reply.decide(Fate::IsLost),
            Self::WithTunnel => world.source.tunnel.kill().await,
        }
    }
}

#[tokio::test]
async fn left_to_libvirt_a_reply_that_is_lost_makes_two_guests() {
    if skipped("left_to_libvirt_a_reply_that_is_lost_makes_two_guests") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    world.reply.leave_to_libvirt();
    for loss in (0..runs()).flat_map(|_| LOSSES) {
        let migration = world.prepare().await;
        world.reply.decide(loss.fate());
        let count = world.reply.count();
        let migrating = world.source.migrating_unpaused();
        world.reply.came_after(count).await;
        // The guest runs at the target, whether or not the source knows it.
        world.target.runs().await;
        loss.happen(&mut world).await;
        migrating.ended().await.unwrap_err();
        world.source.until("Resumed Migrated").await;
        let both = (world.source.state().await, world.target.state().await);
        assert_eq!(
            both,
            (
                DomainState::Running(RunningReason::MigrationCanceled),
                DomainState::Running(RunningReason::Migrated)
            ),
            "{loss:?}"
        );
        for node in [&world.source, &world.target] {
            node.runs().await;
            assert_eq!(node.status_in_qemu().await, "running");
        }
        let (here, there) = (world.source.guest_output(), world.target.guest_output());
        assert!(here.duplicates_in(&there) > 0, "{loss:?}");
        if loss == Loss::WithTunnel {
            world.source.tunnel = Tunnel::start(&world.source.pod).await;
        }
        world.close(&migration).await;
        world.source.clear().await;
        world.target.clear().await;
    }
}

#[tokio::test]
async fn lost_reply_leaves_the_guest_at_the_source_free_to_move() {
    if skipped("lost_reply_leaves_the_guest_at_the_source_free_to_move") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for loss in (0..runs()).flat_map(|_| LOSSES) {
        let migration = world.prepare().await;
        world.reply.decide(loss.fate());
        let count = world.reply.count();
        let moving = Moving::begin(&world.source.guest);
        world.reply.came_after(count).await;
        loss.happen(&mut world).await;
        let refused = moving.ended().await.unwrap_err();
        assert!(refused.is_reply(), "{refused:?}");
        world.source.until("Resumed Migrated").await;
        world.source.runs().await;
        assert_eq!(
            world.source.state().await,
            DomainState::Running(RunningReason::MigrationCanceled)
        );
        assert_eq!(world.source.status_in_qemu().await, "running");
        world.stands_still_at_target(&migration).await;
        if loss == Loss::WithTunnel {
            world.source.tunnel = Tunnel::start(&world.source.pod).await;
        } else {
            let session = world.source.tunnel.now(&migration).await;
            assert_eq!(
                (&session["reply"], &session["released"]),
                (&json!("none"), &Value::Null)
            );
        }
        world.close(&migration).await;
        let came = world.target.clear().await;
        assert_eq!(resumed(&came), 0, "{came:?}");

        let migration = world.pair().await;
        world.moves().await;
        world.is_taken_over(&migration, "ReplyConsumed").await;
        world.target.runs().await;
        world.end_after_one_guest(&migration).await;
    }
}

#[tokio::test]
async fn guest_runs_nowhere_while_the_reply_is_unread() {
    if skipped("guest_runs_nowhere_while_the_reply_is_unread") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for _ in 0..runs() {
        let migration = world.prepare().await;
        let libvirtd = world.source.pod.libvirtd().await;
        let moving = world.moves_up_to_the_reply().await;
        let before = world.source.guest_output();
        kill(libvirtd, Signal::SIGSTOP).unwrap();
        world.reply.decide(Fate::Passes);
        let came = |session: &Value| session["reply"] != "none";
        let session = world.source.tunnel.until(&migration, came).await;
        assert_eq!(session["reply"], "forwarded");
        world.stands_still_at_target(&migration).await;
        kill(libvirtd, Signal::SIGCONT).unwrap();
        assert_eq!(moving.ended().await, Ok(()));
        world.is_taken_over(&migration, "ReplyConsumed").await;
        world.target.runs().await;
        assert_eq!(world.source.guest_output(), before);
        world.end_after_one_guest(&migration).await;
    }
}

#[tokio::test]
async fn guest_runs_nowhere_while_the_reply_is_late() {
    if skipped("guest_runs_nowhere_while_the_reply_is_late") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for _ in 0..runs() {
        let migration = world.prepare().await;
        let moving = world.moves_up_to_the_reply().await;
        let before = world.source.guest_output();
        tokio::time::sleep(delay()).await;
        assert_eq!(world.source.guest_output(), before);
        assert_eq!(world.source.state().await, DomainState::Paused(PausedReason::Migration));
        world.stands_still_at_target(&migration).await;
        assert_eq!(world.source.tunnel.now(&migration).await["reply"], "none");
        world.reply.decide(Fate::Passes);
        assert_eq!(moving.ended().await, Ok(()));
        world.is_taken_over(&migration, "ReplyConsumed").await;
        world.target.runs().await;
        assert_eq!(world.source.guest_output(), before);
        world.end_after_one_guest(&migration).await;
    }
}

/// Time at which the source's libvirtd is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The source's libvirtd is killed before it gets the reply.
    BeforeReply,
    /// The source's libvirtd is killed before it reads the reply that was forwarded to it.
    WithReplyUnread,
    /// The source's libvirtd is killed as soon as it has read the reply.
    AfterReply,
}

#[tokio::test]
async fn libvirtd_killed_after_the_hand_over_resumes_no_guest() {
    if skipped("libvirtd_killed_after_the_hand_over_resumes_no_guest") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    let deaths = [Death::BeforeReply, Death::WithReplyUnread, Death::AfterReply];
    for death in (0..runs()).flat_map(|_| deaths) {
        let migration = world.prepare().await;
        let libvirtd = world.source.pod.libvirtd().await;
        let moving = world.moves_up_to_the_reply().await;
        let reply = match death {
            Death::BeforeReply => "none",
            Death::WithReplyUnread => {
                kill(libvirtd, Signal::SIGSTOP).unwrap();
                "forwarded"
            }
            Death::AfterReply => "consumed",
        };
        if death != Death::BeforeReply {
            world.reply.decide(Fate::Passes);
        }
        let so_far = |session: &Value| [reply, "consumed"].iter().any(|known| session["reply"] == *known);
        let session = world.source.tunnel.until(&migration, so_far).await;
        assert_eq!(session["reply"], reply);
        kill(libvirtd, Signal::SIGKILL).unwrap();
        // The killed libvirtd may or may not have responded.
        let ended = moving.ended().await;
        if death == Death::AfterReply {
            world.is_taken_over(&migration, "ReplyConsumed").await;
            world.target.runs().await;
        }

        world.source.connect_again().await;
        // The query of QEMU waits until the new libvirtd manages QEMU.
        let status = world.source.try_status_in_qemu().await;
        let state = world.source.state().await;
        println!("{death:?}: {}; {state}, {status:?}", ended.is_ok());
        match (death, state) {
            (_, DomainState::Paused(PausedReason::Migration)) => assert_eq!(status, Ok("postmigrate".to_owned())),
            // The killed libvirtd was already killing its QEMU.
            (Death::AfterReply, DomainState::ShutOff(_)) => {}
            (_, other) => panic!("{death:?}: {other}"),
        }
        if death != Death::AfterReply {
            assert_eq!(world.source.tunnel.now(&migration).await["reply"], reply);
            world.stands_still_at_target(&migration).await;
            // The agent observes the state of the guest, and does not resume the guest either.
            let release = json!({"release": {"migration": migration, "proof": "SourceGone"}});
            world.source.tunnel.done(release).await;
            world.is_taken_over(&migration, "SourceGone").await;
        }
        world.target.runs().await;
        assert_eq!(
            world.target.state().await,
            DomainState::Running(RunningReason::Unpaused)
        );
        world.end_after_one_guest(&migration).await;
    }
}

#[tokio::test]
async fn release_lost_with_the_source_tunnel_is_not_assumed() {
    if skipped("release_lost_with_the_source_tunnel_is_not_assumed") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for _ in 0..runs() {
        let migration = world.prepare().await;
        world.moves_without_release(&migration).await;
        world.source.tunnel.kill().await;
        world.network.cut();
        world.network.hold(HeldTraffic::Nothing);
        let alone = |session: &Value| session["connected"] == false;
        world.target.tunnel.until(&migration, alone).await;
        world.stands_still_at_target(&migration).await;

        // The target ignores messages of another process that uses the name of the source's tunnel.
        world.source.tunnel = Tunnel::start(&world.source.pod).await;
        let source = world.source.tunnel.prepare(&migration, "source").await;
        let refused = world.target.tunnel.call(pair(&migration, &source)).await;
        assert_eq!(refused["refused"]["reason"], "OtherPeer");
        let mut target = world.target.tunnel.prepare(&migration, "target").await;
        target["address"] = json!(world.network.address.to_string());
        world.network.expect_control();
        world.source.tunnel.done(pair(&migration, &target)).await;
        let release = json!({"release": {"migration": migration, "proof": "SourceStopped"}});
        world.source.tunnel.done(release).await;
        let refused = |session: &Value| {
            let trouble = session["trouble"].as_str();
            trouble.is_some_and(|trouble| trouble.contains("control channel"))
        };
        world.source.tunnel.until(&migration, refused).await;
        world.stands_still_at_target(&migration).await;

        world.is_resumed_by_agent().await;
        world.end_after_one_guest(&migration).await;
    }
}

#[tokio::test]
async fn release_lost_with_the_target_tunnel_is_left_to_agents() {
    if skipped("release_lost_with_the_target_tunnel_is_left_to_agents") {
        return;
    }
    for _ in 0..runs() {
        // The restarted tunnel listens on another address, so each run uses new nodes.
        let mut world = HandOverWorld::new().await;
        let migration = world.prepare().await;
        world.moves_without_release(&migration).await;
        world.target.tunnel.kill().await;
        world.network.cut();
        world.network.hold(HeldTraffic::Nothing);
        world.target.tunnel = Tunnel::start(&world.target.pod).await;
        let unreachable = |session: &Value| {
            let trouble = session["trouble"].as_str();
            trouble.is_some_and(|trouble| trouble.contains("cannot be reached"))
        };
        let session = world.source.tunnel.until(&migration, unreachable).await;
        assert_eq!(
            (&session["released"], &session["acknowledged"]),
            (&json!("ReplyConsumed"), &json!(false))
        );
        let target = world.target.tunnel.prepare(&migration, "target").await;
        let refused = world.source.tunnel.call(pair(&migration, &target)).await;
        assert_eq!(refused["refused"]["reason"], "OtherPeer");
        world.stands_still_at_target(&migration).await;

        world.is_resumed_by_agent().await;
        world.end_after_one_guest(&migration).await;
    }
}

/// Time at which the control channel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The channel is cut before the target receives the release.
    BeforeRelease,
    /// The channel is cut before the source receives the acknowledgement that the guest was taken over.
    BeforeTakenOver,
    /// The channel is cut at a random time around the arrival of the reply.
    Sometime,
}

#[tokio::test]
async fn guest_resumes_once_despite_repeated_releases() {
    if skipped("guest_resumes_once_despite_repeated_releases") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for cut in (0..runs()).flat_map(|_| [Cut::BeforeRelease, Cut::BeforeTakenOver, Cut::Sometime]) {
        let migration = world.prepare().await;
        let moving = world.moves_up_to_the_reply().await;
        let consumed = |session: &Value| session["reply"] == "consumed";
        match cut {
            Cut::BeforeRelease => {
                world.network.hold(HeldTraffic::ToTarget);
                world.reply.decide(Fate::Passes);
                world.source.tunnel.until(&migration, consumed).await;
                world.stands_still_at_target(&migration).await;
                world.network.cut();
                world.network.hold(HeldTraffic::Nothing);
            }
            Cut::BeforeTakenOver => {
                world.network.hold(HeldTraffic::ToSource);
                world.reply.decide(Fate::Passes);
                world.target.runs().await;
                assert_eq!(world.source.tunnel.now(&migration).await["acknowledged"], false);
                world.network.cut();
                world.network.hold(HeldTraffic::Nothing);
            }
            Cut::Sometime => {
                world.reply.decide(Fate::Passes);
                world.network.cut();
            }
        }
        assert_eq!(moving.ended().await, Ok(()), "{cut:?}");
        world.is_taken_over(&migration, "ReplyConsumed").await;
        world.target.runs().await;
        world.end_after_one_guest(&migration).await;
    }
}

#[tokio::test]
async fn guest_paused_by_user_stays_paused_after_hand_over() {
    if skipped("guest_paused_by_user_stays_paused_after_hand_over") {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for keep_paused in (0..runs()).flat_map(|_| [true, false]) {
        let migration = world.prepare().await;
        world.source.guest.suspend().await.unwrap();
        world.source.until("Suspended Paused").await;
        let keep = json!({"keepPaused": {"migration": migration, "keepPaused": keep_paused}});
        world.source.tunnel.done(keep).await;
        world.moves().await;
        world.is_taken_over(&migration, "ReplyConsumed").await;
        if keep_paused {
            assert_eq!(world.target.state().await, DomainState::Paused(PausedReason::User));
            assert_eq!(world.target.status_in_qemu().await, "paused");
            assert!(world.target.guest_output().is_nothing());
            world.target.guest.resume().await.unwrap();
        }
        // Without the `keepPaused` message, the guest continues by itself.
        world.target.runs().await;
        world.end_after_one_guest(&migration).await;
    }
}
