//! Waits for a value by watching or polling, never for a fixed time.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use kube::{Api, Resource, runtime::wait::await_condition};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// Time for which a test waits for a change that should take seconds.
///
/// The time is long because the machine is shared, and because a kubelet or the controller manager may notice only
/// after a minute that an API server is available again: client-go's reflector waits up to 30 s between its attempts,
/// twice that with jitter, and once more if its first request reaches a server that has not loaded its RBAC rules yet.
/// No test infers anything from the duration.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Limits of the pause between polls: most values are available within a moment, and a booting guest is not polled too
/// often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Waits of at least this length are printed.
const LONG: Duration = Duration::from_secs(1);
/// Number of bytes of an object that a failure message shows, from the end of its text: the status is at the end.
const SHOWN: usize = 4000;

/// Waits until an object meets a condition, and returns it.
///
/// # Errors
/// If it does not within [`PATIENCE`]; the message contains `what`.
pub async fn until<K>(api: Api<K>, name: &str, what: &str, condition: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
{
    let met = |object: Option<&K>| object.is_some_and(&condition);
    let _stopwatch = Stopwatch::start(format!("{name}: {what}"));
    match timeout(PATIENCE, await_condition(api.clone(), name, met)).await {
        Ok(Ok(Some(object))) => Ok(object),
        Ok(Ok(None)) => Err(anyhow!("{name} was deleted while waiting for {what}")),
        Ok(Err(error)) => Err(error).context(format!("waiting for {what}")),
        Err(_) => {
            let mut last = api.get_opt(name).await.ok().flatten();
            if let Some(last) = &mut last {
                last.meta_mut().managed_fields = None;
            }
            let last = format!("{last:?}");
            let from = last.floor_char_boundary(last.len().saturating_sub(SHOWN));
            Err(anyhow!(
                "{name}: timed out waiting for {what}; the last state is … {}",
                &last[from..]
            ))
        }
    }
}

/// Polls until there is a result, for state that cannot be watched.
///
/// # Errors
/// If there is none within [`PATIENCE`]; the message contains `what`.
pub async fn until_some<T, F>(what: &str, mut poll: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    until_ok(what, || {
        let polled = poll();
        async { Ok(polled.await?.ok_or_else(|| "none".to_owned())) }
    })
    .await
}

/// Polls until the inner result is `Ok`. An inner error is the reason for another attempt.
///
/// # Errors
/// If the inner result is not `Ok` within [`PATIENCE`]; the message contains `what` and the last inner error.
pub async fn until_ok<T, F>(what: &str, mut poll: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<std::result::Result<T, String>>>,
{
    let _stopwatch = Stopwatch::start(what.to_owned());
    let mut last = "no result yet".to_owned();
    let polling = async {
        let mut pause = SHORTEST_PAUSE;
        loop {
            match poll().await? {
                Ok(value) => return Ok(value),
                Err(why) => last = why,
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    };
    if let Ok(result) = timeout(PATIENCE, polling).await {
        return result;
    }
    Err(anyhow!("timed out waiting for {what}; the last result was: {last}"))
}

/// Prints the duration of a step when the step ends.
///
/// A failure shows the output of its test, so the output shows where the time was spent.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    what: String,
    begun: Instant,
}

impl Stopwatch {
    pub(crate) fn start(what: String) -> Self {
        let begun = Instant::now();
        Self { what, begun }
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        if took >= LONG {
            println!("{:.1} s: {}", took.as_secs_f64(), self.what);
        }
    }
}
