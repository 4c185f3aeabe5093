use super::{Process, ProcessError};
use futures::{StreamExt, stream};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const DRAIN: Duration = Duration::from_secs(10);

fn no_signal() -> impl futures::Stream<Item = &'static str> + Unpin {
    stream::pending()
}

/// Emits a signal now and another after `later`.
fn two_signals(later: Duration) -> impl futures::Stream<Item = &'static str> + Unpin {
    let second = stream::once(async move {
        tokio::time::sleep(later).await;
        "SIGINT"
    });
    stream::iter(["SIGTERM"]).chain(second).boxed()
}

#[tokio::test(start_paused = true)]
async fn signal_starts_the_drain_and_the_tasks_finish() {
    let process = Process::new();
    let (stopping, finished) = (process.stopping(), Arc::new(AtomicBool::new(false)));
    let done = finished.clone();
    process.spawn_critical("worker", async move {
        stopping.cancelled().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        done.store(true, Ordering::Relaxed);
    });
    process
        .run(stream::iter(["SIGTERM"]).chain(no_signal()), DRAIN)
        .await
        .unwrap();
    assert!(finished.load(Ordering::Relaxed));
    assert!(process.running_tasks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_critical_task_that_ends_ends_the_process_and_is_named() {
    let process = Process::new();
    process.spawn_critical("watching nodes", async {});
    let error = process.run(no_signal(), DRAIN).await.unwrap_err();
    assert!(
        matches!(&error, ProcessError::EndedEarly { task } if task == "watching nodes"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_critical_task_is_the_cause() {
    let process = Process::new();
    process.spawn("short", async {});
    let failing = process.clone();
    process.spawn_critical("lease", async move {
        failing.fail(ProcessError::Failed {
            task: "lease".into(),
            source: "refused".into(),
        });
    });
    let error = process.run(no_signal(), DRAIN).await.unwrap_err();
    assert_eq!(crate::chain(&error).to_string(), "lease failed: refused");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_any_task_ends_the_process() {
    let process = Process::new();
    process.spawn("short", async { panic!("index {}", 7) });
    let error = process.run(no_signal(), DRAIN).await.unwrap_err();
    assert_eq!(error.to_string(), "short panicked: index 7");
}

#[tokio::test(start_paused = true)]
async fn drain_is_bounded_and_lists_late_parts() {
    let process = Process::new();
    process.spawn("deaf", std::future::pending());
    process.spawn("deaf", std::future::pending());
    process.spawn("mute", std::future::pending());
    process.stop();
    let error = process.run(no_signal(), DRAIN).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "tasks still running 10s after the request to stop: deaf (2), mute"
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_ends_the_drain() {
    let process = Process::new();
    process.spawn("deaf", std::future::pending());
    let started = crate::clock::Instant::now();
    let error = process
        .run(two_signals(Duration::from_secs(1)), DRAIN)
        .await
        .unwrap_err();
    assert!(matches!(error, ProcessError::Aborted { signal: "SIGINT" }));
    assert_eq!(started.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn background_task_outlives_workers_and_is_then_dropped() {
    let process = Process::new();
    let (alive, token) = (Arc::new(()), process.stopping());
    let held = alive.clone();
    process.spawn_to_the_end("admin", async move {
        let _held = held;
        std::future::pending::<()>().await;
    });
    let held = alive.clone();
    process.spawn("worker", async move {
        token.cancelled().await;
        assert_eq!(Arc::strong_count(&held), 3, "the admin port outlives the workers");
    });
    process.stop();
    process.run(no_signal(), DRAIN).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&alive), 1);
}
