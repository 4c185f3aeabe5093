use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{SinkExt, StreamExt, channel::mpsc};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use proptest::prelude::*;
use tokio::time::Instant;

use super::{
    FIRST_WAIT, LONGEST_WAIT, LOW, PAGE, Requeue, WorkQueue, WorkQueueMetrics,
    queue::{KeyQueue, ReconcileResult},
};
use crate::{
    Key, Process, Trigger,
    fake::{candidate, elect},
};

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

fn open() -> KeyQueue {
    let mut queue = KeyQueue::default();
    queue.open();
    queue
}

fn taken(queue: &mut KeyQueue, now: Instant) -> Option<Key> {
    queue.take(now).map(|(key, _)| key)
}

#[test]
fn without_a_term_nothing_is_kept() {
    let mut queue = KeyQueue::default();
    let now = Instant::now();
    assert!(!queue.add(key("a"), now));
    queue.open();
    assert!(
        queue.add(key("a"), now) && !queue.add(key("a"), now),
        "the same key is one key"
    );
    assert_eq!(taken(&mut queue, now), Some(key("a")));
    assert_eq!(queue.take(now), None);
    queue.close();
    assert_eq!(queue.len(), 0);
    // A reconcile of the previous term ends in this term.
    queue.open();
    queue.done(key("a"), &ReconcileResult::Failed, now);
    assert_eq!(queue.len(), 0);
}

#[test]
fn key_added_during_a_reconcile_is_reconciled_again() {
    let (mut queue, now) = (open(), Instant::now());
    queue.add(key("a"), now);
    queue.take(now);
    assert!(!queue.add(key("a"), now));
    assert_eq!(queue.take(now), None, "one reconcile at a time");
    queue.done(key("a"), &ReconcileResult::OnChange, now);
    assert_eq!(taken(&mut queue, now), Some(key("a")));
    queue.done(key("a"), &ReconcileResult::OnChange, now);
    assert_eq!((queue.take(now), queue.len()), (None, 0));
}

#[test]
fn a_time_is_waited_for_unless_something_changes() {
    let (mut queue, now) = (open(), Instant::now());
    let due = now + Duration::from_secs(10);
    for change in [false, true] {
        queue.add(key("a"), now);
        queue.take(now);
        queue.done(key("a"), &ReconcileResult::At(due), now);
        assert_eq!((queue.next(), queue.take(now)), (Some(due), None));
        if change {
            assert!(queue.add(key("a"), now));
            assert_eq!(taken(&mut queue, now), Some(key("a")));
        } else {
            assert_eq!(taken(&mut queue, due), Some(key("a")));
        }
        queue.done(key("a"), &ReconcileResult::OnChange, now);
        assert_eq!(queue.next(), None);
    }
}

#[test]
fn failures_wait_longer_and_longer_and_news_shorten_that() {
    let (mut queue, mut now) = (open(), Instant::now());
    queue.add(key("a"), now);
    let mut last = Duration::ZERO;
    for failure in 0..30 {
        assert_eq!(taken(&mut queue, now), Some(key("a")), "failure {failure}");
        assert_eq!(queue.done(key("a"), &ReconcileResult::Failed, now), failure == 0);
        let wait = queue.next().unwrap() - now;
        assert!(wait <= LONGEST_WAIT);
        last = wait;
        assert_eq!(queue.take(now + wait - Duration::from_millis(1)), None);
        now += wait;
    }
    assert!(last >= LONGEST_WAIT / 2);
    queue.take(now);
    queue.done(key("a"), &ReconcileResult::Failed, now);
    assert!(queue.add(key("a"), now));
    assert_eq!(queue.take(now), None, "news do not make it spin");
    assert_eq!(taken(&mut queue, now + FIRST_WAIT), Some(key("a")));
    now += FIRST_WAIT;
    // Changes by the reconcile itself do not shorten the wait either.
    queue.add(key("a"), now);
    queue.done(key("a"), &ReconcileResult::Failed, now);
    assert_eq!(queue.take(now), None);
    assert_eq!(taken(&mut queue, now + FIRST_WAIT), Some(key("a")));
    // A success resets the back-off.
    queue.done(key("a"), &ReconcileResult::OnChange, now);
    queue.add(key("a"), now);
    queue.take(now);
    assert!(queue.done(key("a"), &ReconcileResult::Failed, now));
    assert!(queue.next().unwrap() <= now + FIRST_WAIT);
}

#[test]
fn ready_keys_are_counted_from_the_due_time() {
    let (mut queue, now) = (open(), Instant::now());
    let due = now + Duration::from_secs(10);
    queue.add(key("a"), now);
    queue.add(key("b"), now);
    queue.add(key("b"), now);
    assert_eq!(queue.readied(), (2, 2));
    assert_eq!(queue.take(now + Duration::from_secs(1)), Some((key("a"), now)));
    assert_eq!(queue.readied(), (0, 1));
    queue.done(key("a"), &ReconcileResult::At(due), now);
    assert_eq!(queue.readied(), (0, 1), "a key that waits for a time is not ready");
    assert_eq!(taken(&mut queue, now), Some(key("b")));
    let late = due + Duration::from_secs(2);
    assert_eq!(
        queue.take(late),
        Some((key("a"), due)),
        "the wait for its time is no delay"
    );
    assert_eq!(queue.readied(), (1, 0));
    queue.add(key("c"), late);
    queue.close();
    assert_eq!(queue.readied(), (0, 0), "the keys of a term end with it");
}

#[test]
fn the_earlier_wake_wins() {
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    assert_eq!(Requeue::OnChange.or_at(None), Requeue::OnChange);
    assert_eq!(Requeue::OnChange.or_at(Some(at(5))), Requeue::At(at(5)));
    assert_eq!(Requeue::At(at(7)).or_at(Some(at(5))), Requeue::At(at(5)));
    assert_eq!(Requeue::At(at(3)).or_at(Some(at(5))), Requeue::At(at(3)));
}

proptest! {
    /// For any sequence of operations: no key is taken while it is busy, and none is lost.
    #[test]
    fn no_key_is_taken_twice_nor_lost(actions in prop::collection::vec((0u8..6, 0usize..4), 1..200)) {
        let names = ["a", "b", "c", "d"];
        let mut queue = open();
        let mut now = Instant::now();
        // Per key: whether it is busy, and whether it was added since it was last taken.
        let mut model: BTreeMap<&str, (bool, bool)> = names.iter().map(|name| (*name, (false, false))).collect();
        for (action, index) in actions {
            let name = names[index];
            match action {
                0 | 1 => {
                    queue.add(key(name), now);
                    model.get_mut(name).unwrap().1 = true;
                }
                2 => if let Some(taken) = taken(&mut queue, now) {
                    let state = model.get_mut(&*taken.name).unwrap();
                    prop_assert!(!state.0, "{taken} was busy");
                    *state = (true, false);
                },
                _ if model[name].0 => {
                    let done = match action {
                        3 => ReconcileResult::OnChange,
                        4 => ReconcileResult::At(now + Duration::from_secs(3)),
                        _ => ReconcileResult::Failed,
                    };
                    queue.done(key(name), &done, now);
                    model.get_mut(name).unwrap().0 = false;
                }
                _ => now += Duration::from_secs(1),
            }
        }
        for name in names {
            if model[name].0 {
                queue.done(key(name), &ReconcileResult::OnChange, now);
                model.get_mut(name).unwrap().0 = false;
            }
        }
        while let Some(taken) = taken(&mut queue, now + 2 * LONGEST_WAIT) {
            model.get_mut(&*taken.name).unwrap().1 = false;
            queue.done(taken, &ReconcileResult::OnChange, now);
        }
        prop_assert!(model.values().all(|(_, added)| !added), "{model:?}");
        prop_assert_eq!(queue.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_begins_with_all_keys_and_ends_with_none() {
    let process = Process::new();
    let (leadership, mut server) = candidate(&process, Trigger::new());
    let work = WorkQueue::new("things", 2, &WorkQueueMetrics::default());
    let (started, mut seen) = mpsc::unbounded();
    work.add(key("before"));
    let running = {
        let (work, stopping) = (work.clone(), process.stopping());
        async move {
            let all = async || vec![key("all")];
            let reconcile = |key: Key| {
                let mut started = started.clone();
                async move {
                    started.send(key.name.to_string()).await.map_err(io::Error::other)?;
                    if &*key.name == "later" {
                        return Ok(Requeue::At(crate::clock::now() + SignedDuration::from_secs(3)));
                    }
                    Ok::<_, io::Error>(Requeue::OnChange)
                }
            };
            work.run(&stopping, leadership, all, reconcile).await;
        }
    };
    let watching = async {
        elect(&mut server).await;
        assert_eq!(
            seen.next().await.unwrap(),
            "all",
            "what came before the term is not kept"
        );
        work.add(key("later"));
        for _ in 0..2 {
            assert_eq!(seen.next().await.unwrap(), "later");
        }
        // The API server stops responding, so the term expires.
        let _lost = server.next_request().await.lose();
        tokio::time::sleep(Duration::from_secs(60)).await;
        work.add(key("after"));
        assert!(work.is_empty(), "{work:?}");
    };
    tokio::select! {
        () = running => panic!("it ends only when the process stops"),
        () = watching => {}
    }
}

#[tokio::test(start_paused = true)]
async fn reconciles_are_bounded_and_failures_are_isolated() {
    let process = Process::new();
    let (leadership, mut server) = candidate(&process, Trigger::new());
    let mut registry = Registry::default();
    let work = WorkQueue::new("things", 2, &WorkQueueMetrics::register(&mut registry));
    let (started, mut seen) = mpsc::unbounded();
    let stopping = process.stopping();
    let all = async || vec![key("stuck"), key("broken"), key("fine")];
    let reconcile = |key: Key| {
        let mut started = started.clone();
        async move {
            let _ = started.send(key.name.to_string()).await;
            match &*key.name {
                "stuck" => std::future::pending().await,
                "broken" => Err(io::Error::other("broken")),
                _ => Ok(()),
            }
        }
    };
    let watching = async {
        elect(&mut server).await;
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(seen.next().await.unwrap());
        }
        assert_eq!(order, ["stuck", "broken", "fine", "broken"]);
        // Waits until the second attempt of the broken key has ended; its third attempt follows later.
        tokio::time::sleep(Duration::from_millis(1)).await;
        work.add(key("fine"));
        work.add(key("more"));
        let mut scraped = String::new();
        encode(&mut scraped, &registry).unwrap();
        for sample in [
            r#"workqueue_depth{name="things"} 2"#,
            // The retry counts as one of the additions.
            r#"workqueue_adds_total{name="things"} 6"#,
            r#"workqueue_retries_total{name="things"} 2"#,
            r#"workqueue_queue_duration_seconds_count{name="things"} 4"#,
            r#"workqueue_work_duration_seconds_count{name="things"} 3"#,
        ] {
            assert!(
                scraped.lines().any(|line| line == sample),
                "{sample} is missing in {scraped}"
            );
        }
    };
    tokio::select! {
        () = work.run(&stopping, leadership, all, reconcile) => panic!("it ends only when the process stops"),
        () = watching => {}
    }
}

#[tokio::test(start_paused = true)]
async fn change_waits_for_a_page_of_a_sweep_at_most() {
    const KEYS: usize = 2000;
    let process = Process::new();
    let (leadership, mut server) = candidate(&process, Trigger::new());
    let work = WorkQueue::new("things", 4, &WorkQueueMetrics::default());
    let swept: Vec<Key> = (0..KEYS).map(|number| key(&format!("{number:05}"))).collect();
    let (seen, most) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let (stopping, changes) = (process.stopping(), work.clone());
    let started = Trigger::new();
    let all = async || {
        started.notify();
        Vec::new()
    };
    let reconcile = |reconciled: Key| {
        most.fetch_max(changes.len(), Ordering::Relaxed);
        let mut seen = seen.lock();
        seen.push(reconciled);
        if seen.len() == KEYS / 2 {
            changes.add(key("changed"));
        }
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, io::Error>(())
        }
    };
    let done = async {
        elect(&mut server).await;
        started.notified().await;
        work.add_pages(|last, count| {
            let after = last.map_or(0, |last| swept.partition_point(|key| key <= last));
            swept[after..].iter().take(count).cloned().collect()
        })
        .await;
        while !work.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = work.run(&stopping, leadership, all, reconcile) => panic!("it ends only when the process stops"),
        () = done => {}
    }
    let seen = seen.into_inner();
    let position = seen.iter().position(|found| *found == key("changed")).unwrap();
    assert!(position <= KEYS / 2 + PAGE + LOW, "{position}");
    assert!(most.load(Ordering::Relaxed) <= PAGE + LOW + 4, "{most:?}");
    let unique: BTreeSet<&Key> = seen.iter().collect();
    assert_eq!((seen.len(), unique.len()), (KEYS + 1, KEYS + 1));
}

#[tokio::test(start_paused = true)]
async fn other_tasks_run_between_reconciles_that_never_wait() {
    const KEYS: usize = 3000;
    let process = Process::new();
    let (leadership, mut server) = candidate(&process, Trigger::new());
    let work = WorkQueue::new("things", 16, &WorkQueueMetrics::default());
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    process.spawn("another task", async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let seen = Mutex::new(BTreeSet::new());
    let stopping = process.stopping();
    let all = async || (0..KEYS).map(|number| key(&number.to_string())).collect();
    let reconcile = |_: Key| {
        seen.lock().insert(turns.load(Ordering::Relaxed));
        async { Ok::<_, io::Error>(()) }
    };
    let done = async {
        elect(&mut server).await;
        while seen.lock().is_empty() || !work.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = work.run(&stopping, leadership, all, reconcile) => panic!("it ends only when the process stops"),
        () = done => {}
    }
    assert!(seen.into_inner().len() > KEYS - 32);
}
