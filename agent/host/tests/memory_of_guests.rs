//! Memory that a guest costs its agent. This test has its own process, so that only the guests are measured.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]
#![expect(dead_code, reason = "not all of the pod's helpers are needed here")]

mod pod;

use drydock_host::domain::{CallDeadlines, DomainHandle};
use pod::{Pod, SOCKET, skipped};

/// Number of guests to measure, as on a large node.
const GUESTS: u64 = 60;

/// Limit per guest, in KiB of anonymous memory.
const BUDGET: u64 = 1024;

/// Returns this process's anonymous memory in KiB.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn guest_connection_stays_within_the_memory_limit() {
    if skipped("guest_connection_stays_within_the_memory_limit") {
        return;
    }
    let pod = Pod::with_libvirtd();
    let folder = pod.folder();
    let connect = async |name: &str| {
        let connected = DomainHandle::connect_when_open(&folder, SOCKET, name, CallDeadlines::default()).await;
        let (guest, events) = connected.unwrap();
        // The test makes calls as an agent makes them, so that the thread has executed some work.
        assert_eq!(guest.names().await, Ok(vec![]));
        assert!(guest.versions().await.is_ok() && guest.state().await.is_err());
        (guest, events)
    };
    let first = connect("first").await;
    let before = anonymous();
    let mut guests = Vec::new();
    for number in 0..GUESTS {
        guests.push(connect(&format!("guest-{number}")).await);
    }
    let each = anonymous().saturating_sub(before) / GUESTS;
    println!("{each} KiB for each guest, {before} KiB without");
    assert!(each <= BUDGET, "{each} KiB for each guest");

    // No memory is kept after the connections have ended.
    for (guest, _events) in &guests {
        guest.close();
        guest.ended().await;
    }
    drop(guests);
    let full = anonymous();
    for round in 0..5 {
        for number in 0..GUESTS {
            let (guest, _events) = connect(&format!("guest-{round}-{number}")).await;
            guest.close();
            guest.ended().await;
        }
    }
    let grown = anonymous().saturating_sub(full);
    println!("{grown} KiB more after {} connections", 5 * GUESTS);
    assert!(grown < 5 * GUESTS, "{grown} KiB");
    drop(first);
}
