//! Waiting for a value, by watching: never for a time.

use std::{fmt::Debug, future::Future, time::Duration};

use anyhow::{Context, Result, anyhow};
use kube::{Api, Resource, runtime::wait::await_condition};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// How long a test waits for something that should come within seconds. It is long because the
/// machine is shared, and because a kubelet and the controller manager look at an API server that
/// is back only after a minute at times: client-go's reflector waits up to 30 s between its tries,
/// twice that with its jitter, and once more if it is the first to ask a server that does not know
/// its rights yet. Nothing is concluded from how long it took.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// How much of an object's end a failure shows: there, its status is.
const SHOWN: usize = 4000;

/// Waits until an object meets a condition, and returns it.
///
/// # Errors
/// If it does not within [`PATIENCE`]; the message says what was waited for.
pub async fn until<K>(api: Api<K>, name: &str, what: &str, condition: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
{
    let met = |object: Option<&K>| object.is_some_and(&condition);
    match timeout(PATIENCE, await_condition(api.clone(), name, met)).await {
        Ok(Ok(Some(object))) => Ok(object),
        Ok(Ok(None)) => Err(anyhow!("{name} has gone while waiting for {what}")),
        Ok(Err(error)) => Err(error).context(format!("waiting for {what}")),
        Err(_) => {
            let mut last = api.get_opt(name).await.ok().flatten();
            if let Some(last) = &mut last {
                last.meta_mut().managed_fields = None;
            }
            let last = format!("{last:?}");
            let from = last.floor_char_boundary(last.len().saturating_sub(SHOWN));
            Err(anyhow!(
                "{name}: waited in vain for {what}; it is now … {}",
                &last[from..]
            ))
        }
    }
}

/// Asks again and again until there is an answer. For what cannot be watched.
///
/// # Errors
/// If there is none within [`PATIENCE`]; the message says what was waited for.
pub async fn until_some<T, F>(what: &str, mut question: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    until_ok(what, || {
        let answer = question();
        async { Ok(answer.await?.ok_or_else(|| "none".to_owned())) }
    })
    .await
}

/// Asks again and again until the answer is one to go on with. An error inside says why it is not.
///
/// # Errors
/// If there is none within [`PATIENCE`]; the message says what was waited for, and what the last answer was.
pub async fn until_ok<T, F>(what: &str, mut question: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<std::result::Result<T, String>>>,
{
    let mut last = "not there yet".to_owned();
    let asking = async {
        loop {
            match question().await? {
                Ok(answer) => return Ok(answer),
                Err(why) => last = why,
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    if let Ok(answer) = timeout(PATIENCE, asking).await {
        return answer;
    }
    Err(anyhow!("waited in vain for {what}; the last answer was: {last}"))
}
