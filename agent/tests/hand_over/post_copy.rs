//! Tests of guests that may be or were switched to post-copy. Whatever is lost, there are never two guests.
//!
//! ```text
//!  begun ──▶ whole in time: arrives paused, goes on by proof, as all others
//!    └─ switched: source (paused, post-copy) for good │ target runs, and memory follows ──▶ (running, migrated)
//!                                                     └─ connection cut: neither goes on
//! ```

use drydock_host::domain::{DomainState, Migration, PausedReason, RunningReason, ShutOffReason};
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tokio::process::Command;

use crate::{
    LOSSES, Loss, delay, guest,
    network::Memory,
    node::{Moving, resumed},
    pod::{SOCKET, USERFAULTFD},
    reply::Fate,
    tunnel::Tunnel,
    world::{HandOverWorld, runs, skipped},
};

/// First version of QEMU that opens the userfaultfd device. Earlier versions need a privilege.
const FIRST_QEMU: u32 = 8;

/// Returns a migration that may be switched, and that is slow enough for a switch.
fn switchable() -> Migration {
    Migration {
        post_copy: true,
        bandwidth: Some(1),
        ..Migration::default()
    }
}

async fn cannot(test: &str) -> bool {
    if skipped(test) {
        return true;
    }
    let version = Command::new("qemu-system-x86_64")
        .arg("--version")
        .output()
        .await
        .unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let number = version
        .split_once("version ")
        .and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    let why = if number.is_none_or(|number: u32| number < FIRST_QEMU) {
        format!("QEMU is older than {FIRST_QEMU}")
    } else if !std::path::Path::new(USERFAULTFD).exists() {
        format!("there is no {USERFAULTFD}")
    } else {
        return false;
    };
    eprintln!("skipped: {test}: {why}");
    true
}

impl HandOverWorld {
    /// Prepares like [`HandOverWorld::prepare`], with a guest whose migration takes a while.
    async fn prepare_large(&mut self) -> String {
        guest::large_xml(&self.target.pod);
        let xml = guest::large_xml(&self.source.pod);
        self.source.run_as(&xml).await;
        self.pair().await
    }

    /// Starts a migration, switches it as soon as libvirt allows this, and waits until the guest runs at the target.
    async fn switches(&mut self) -> Moving {
        let moving = Moving::begin_as(&self.source.guest, switchable());
        // Memory is sent for most of a minute. libvirt refuses the switch before that.
        while let Err(error) = self.source.guest.start_post_copy().await {
            assert!(error.is_reply(), "{error:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        self.source.until("Suspended Post-copy").await;
        self.target.runs().await;
        self.stands_still_at_source().await;
        assert_eq!(self.target.state().await, DomainState::Running(RunningReason::PostCopy));
        moving
    }

    /// Removes the bandwidth limit of the missing memory.
    async fn memory_follows(&self) {
        let unlimited = json!({"execute": "migrate-set-parameters", "arguments": {"max-postcopy-bandwidth": 0}});
        self.source.qemu(&unlimited).await;
    }

    /// Asserts that libvirt prevents the guest from running at its source.
    async fn stands_still_at_source(&self) {
        let state = self.source.state().await;
        assert!(
            matches!(
                state,
                DomainState::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed)
            ),
            "{state}"
        );
        let refused = self.source.guest.resume().await.unwrap_err();
        assert!(refused.is_reply(), "{refused:?}");
        let refused = self.source.guest.abort_job().await.unwrap_err();
        assert!(refused.is_reply(), "{refused:?}");
    }

    /// Ends a hand-over after which the guest continues to run. Asserts that there was only one guest at all times.
    async fn end_after_a_switch(&mut self, migration: &str) {
        self.target.runs().await;
        assert_eq!(self.target.state().await, DomainState::Running(RunningReason::Migrated));
        self.close(migration).await;
        let left = self.source.clear().await;
        self.target.clear().await;
        assert_eq!(resumed(&left), 0, "{left:?}\n{}", self.logs());
        let (there, here) = (self.source.guest_output(), self.target.guest_output());
        println!("one guest, which counted to {}", there.and_then(&here));
    }
}

#[tokio::test]
async fn guest_with_post_copy_allowed_arrives_by_pre_copy() {
    if cannot("guest_with_post_copy_allowed_arrives_by_pre_copy").await {
        return;
    }
    let how = Migration {
        bandwidth: None,
        ..switchable()
    };
    let mut world = HandOverWorld::new().await;
    for _ in 0..runs() {
        let migration = world.prepare().await;
        let ended = Moving::begin_as(&world.source.guest, how.clone()).ended().await;
        assert_eq!(ended, Ok(()), "{}", world.logs());
        world.is_taken_over(&migration, "ReplyConsumed").await;
        world.target.runs().await;
        assert_eq!(
            world.target.state().await,
            DomainState::Running(RunningReason::Unpaused)
        );
        world.end_after_one_guest(&migration).await;
    }
    for loss in (0..runs()).flat_map(|_| LOSSES) {
        let migration = world.prepare().await;
        world.reply.decide(loss.fate());
        let count = world.reply.count();
        let moving = Moving::begin_as(&world.source.guest, how.clone());
        world.reply.came_after(count).await;
        loss.happen(&mut world).await;
        let refused = moving.ended().await.unwrap_err();
        assert!(refused.is_reply(), "{refused:?}");
        world.source.until("Resumed Migrated").await;
        world.source.runs().await;
        // libvirt would have resumed the guest at the target if its last call had not been changed.
        assert_eq!(
            world.target.state().await,
            DomainState::Paused(PausedReason::User),
            "{loss:?}"
        );
        assert!(world.target.guest_output().is_nothing(), "{loss:?}");
        if loss == Loss::WithTunnel {
            world.source.tunnel = Tunnel::start(&world.source.pod).await;
        }
        world.close(&migration).await;
        world.source.clear().await;
        world.target.clear().await;
    }
}

#[tokio::test]
async fn switched_guest_runs_only_at_the_target_in_post_copy() {
    if cannot("switched_guest_runs_only_at_the_target_in_post_copy").await {
        return;
    }
    let mut world = HandOverWorld::new().await;
    for _ in 0..runs() {
        let migration = world.prepare_large().await;
        let moving = world.switches().await;
        world.memory_follows().await;
        assert_eq!(moving.ended().await, Ok(()), "{}", world.logs());
        assert_eq!(
            world.source.state().await,
            DomainState::ShutOff(ShutOffReason::Migrated)
        );
        world.end_after_a_switch(&migration).await;
    }
}

#[tokio::test]
async fn a_reply_that_is_lost_or_late_after_a_switch_changes_nothing() {
    if cannot("a_reply_that_is_lost_or_late_after_a_switch_changes_nothing").await {
        return;
    }
    let mut world = HandOverWorld::new().await;
    let losses = LOSSES.map(Some).into_iter().chain([None]);
    for loss in (0..runs()).flat_map(|_| losses.clone()) {
        let migration = world.prepare_large().await;
        world.reply.decide(loss.map_or(Fate::Waits, Loss::fate));
        let count = world.reply.count();
        let moving = world.switches().await;
        world.memory_follows().await;
        world.reply.came_after(count).await;
        match loss {
            Some(loss) => {
                loss.happen(&mut world).await;
                assert!(moving.ended().await.is_err(), "{loss:?}");
            }
            None => {
                tokio::time::sleep(delay()).await;
                world.stands_still_at_source().await;
                world.target.runs().await;
                world.reply.decide(Fate::Passes);
                assert_eq!(moving.ended().await, Ok(()));
            }
        }
        // QEMU itself has reported that the complete memory was sent.
        world.source.until("Stopped Migrated").await;
        if loss == Some(Loss::WithTunnel) {
            world.source.tunnel = Tunnel::start(&world.source.pod).await;
        }
        world.end_after_a_switch(&migration).await;
    }
}

#[tokio::test]
async fn a_libvirtd_that_dies_after_a_switch_changes_nothing() {
    if cannot("a_libvirtd_that_dies_after_a_switch_changes_nothing").await {
        return;
    }
    for at_source in (0..runs()).flat_map(|_| [true, false]) {
        let mut world = HandOverWorld::new().await;
        let migration = world.prepare_large().await;
        let moving = world.switches().await;
        let node = if at_source {
            &mut world.source
        } else {
            &mut world.target
        };
        kill(node.libvirtd().await, Signal::SIGKILL).unwrap();
        let ended = moving.ended().await.unwrap_err();
        assert_eq!(ended.is_reply(), !at_source, "{ended:?}");
        // The next libvirtd listens at the path at which the gate listened before.
        node.socket = SOCKET;
        node.connect_again().await;
        // The streams between the QEMUs do not depend on libvirtd.
        world.target.runs().await;
        world.memory_follows().await;
        // A libvirtd that has been restarted, or has lost the other libvirtd, follows its QEMU by itself.
        loop {
            match world.source.state().await {
                DomainState::ShutOff(ShutOffReason::Migrated) => break,
                DomainState::Paused(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                other => panic!("{other}"),
            }
        }
        world.end_after_a_switch(&migration).await;
    }
}

#[tokio::test]
async fn guest_with_lost_post_copy_memory_runs_nowhere() {
    if cannot("guest_with_lost_post_copy_memory_runs_nowhere").await {
        return;
    }
    for with_tunnel in (0..runs()).flat_map(|_| [false, true]) {
        let mut world = HandOverWorld::new().await;
        world.prepare_large().await;
        let moving = world.switches().await;
        let before = world.source.guest_output();
        if with_tunnel {
            world.source.tunnel.kill().await;
        } else {
            world.network.memory(Memory::IsCut);
        }
        assert!(moving.ended().await.is_err());
        world.target.until("Resumed Post-copy Error").await;
        assert_eq!(
            world.target.state().await,
            DomainState::Running(RunningReason::PostCopyFailed)
        );
        world.stands_still_at_source().await;
        assert_eq!(
            world.source.state().await,
            DomainState::Paused(PausedReason::PostCopyFailed)
        );
        assert!(world.target.guest.resume().await.is_err());
        assert_eq!(world.source.guest_output(), before);
    }
}
