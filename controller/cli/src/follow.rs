//! `kubectl drydock drain` and `watch`: the course of a drain, by watches.
//!
//! ```text
//!  Hypervisor of the node ──┐
//!                           ├─▶ drydock_view::drain ─▶ one line for each change
//!  its NodeMaintenances ────┘                        └▶ the end, and an exit code
//! ```

use std::{fmt::Debug, io::Write, pin::pin, time::Duration};

use drydock_api::{
    Hypervisor,
    hypervisor::DrainStatus,
    maintenance::{Group, NodeMaintenance},
};
use drydock_runtime::clock;
use drydock_view::drain::{DrainEvent, events, summary};
use futures::{Stream, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{
    arguments::{Follow, Output},
    failure::{Exit, Failure},
    output,
};

/// Time without a change after which a line says what the drain waits for.
const SILENCE: Duration = Duration::from_secs(30);
/// Pause before a watch that the API server has ended is opened again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time without an API server after which that is said.
const UNHEARD: Duration = Duration::from_secs(10);

/// Follows the drain of a node until it is over.
///
/// # Errors
/// If the objects cannot be read.
pub(crate) async fn follow(
    client: &Client,
    node: &str,
    options: &Follow,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let hypervisors = changes(Api::<Hypervisor>::all(client.clone()), Some(node.to_owned()));
    let mut hypervisors = pin!(hypervisors);
    let maintenances = Group::ALL.map(|group| {
        let api = Api::<NodeMaintenance>::all_with(client.clone(), &group);
        changes(api, None).boxed()
    });
    let mut maintenances = stream::select_all(maintenances);
    let mut course = Course::new(node, options.output);
    let deadline = options
        .timeout
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    loop {
        let silence = Instant::now() + SILENCE;
        let next = async {
            tokio::select! {
                found = hypervisors.next() => Seen::Drain(found.transpose().map(|found| found.flatten().map(Box::new))),
                found = maintenances.next() => Seen::Maintenance(found.transpose().map(|found| found.flatten().map(Box::new))),
                () = sleep_until(silence) => Seen::Silence,
                // The drain goes on in the cluster.
                _ = tokio::signal::ctrl_c() => Seen::Interrupted,
            }
        };
        let seen = match deadline {
            Some(deadline) => timeout_at(deadline, next).await.unwrap_or(Seen::TimedOut),
            None => next.await,
        };
        if let Some(exit) = course.take(seen, out)? {
            return Ok(exit);
        }
    }
}

/// What has happened.
enum Seen {
    Drain(Result<Option<Box<Hypervisor>>, Failure>),
    Maintenance(Result<Option<Box<NodeMaintenance>>, Failure>),
    Silence,
    Interrupted,
    TimedOut,
}

/// The course of a drain as far as it was printed.
struct Course<'a> {
    node: &'a str,
    output: Output,
    drain: Option<DrainStatus>,
    /// The last error of its maintenance.
    error: Option<String>,
    /// Whether its maintenance was seen.
    begun: bool,
}

impl<'a> Course<'a> {
    fn new(node: &'a str, output: Output) -> Self {
        Self {
            node,
            output,
            drain: None,
            error: None,
            begun: false,
        }
    }

    /// Prints what has happened; returns the exit code if the drain is over, or is followed no longer.
    fn take(&mut self, seen: Seen, out: &mut dyn Write) -> Result<Option<Exit>, Failure> {
        let now = clock::now();
        match seen {
            Seen::Drain(hypervisor) => {
                let drain = hypervisor?.and_then(|hypervisor| hypervisor.status?.drain);
                for event in events(now, self.node, self.drain.as_ref(), drain.as_ref()) {
                    self.print(&event, out)?;
                }
                self.drain = drain;
                Ok(None)
            }
            Seen::Maintenance(object) => {
                let Some(object) = object?.filter(|object| object.spec.node_name == self.node) else {
                    return Ok(None);
                };
                self.maintenance(&object, out)
            }
            Seen::Silence => {
                if let Some(drain) = self.drain.as_ref().filter(|drain| drain.finished_at.is_none()) {
                    self.print(&summary(now, self.node, drain), out)?;
                }
                Ok(None)
            }
            Seen::Interrupted => {
                let node = self.node;
                eprintln!(
                    "this view has ended, the drain goes on; to call it off: kubectl drydock maintenance stop {node}"
                );
                Ok(Some(Exit::Done))
            }
            Seen::TimedOut => {
                eprintln!("the drain was not over in time, and goes on");
                Ok(Some(Exit::NotInTime))
            }
        }
    }

    fn maintenance(&mut self, object: &NodeMaintenance, out: &mut dyn Write) -> Result<Option<Exit>, Failure> {
        let now = clock::now();
        let event = |state, reason: &str, message| DrainEvent::of_node(now, self.node, state, reason, message);
        if object.metadata.deletion_timestamp.is_some() {
            if !self.begun {
                return Ok(None);
            }
            let event = event(
                "Open",
                "MaintenanceStopped",
                "somebody has called the maintenance off".into(),
            );
            self.print(&event, out)?;
            return Ok(Some(Exit::CalledOff));
        }
        self.begun = true;
        let status = object.status.clone().unwrap_or_default();
        let error = status.last_error.filter(|error| !error.is_empty());
        match status.phase.as_deref() {
            Some("Succeeded") => {
                let event = event(
                    "Empty",
                    "MaintenanceSucceeded",
                    "it is safe to switch the node off".into(),
                );
                self.print(&event, out)?;
                Ok(Some(Exit::Done))
            }
            Some("Failed") => {
                let event = event("Open", "MaintenanceFailed", error.unwrap_or_default());
                self.print(&event, out)?;
                Ok(Some(Exit::Error))
            }
            _ => {
                if error != self.error
                    && let Some(error) = &error
                {
                    self.print(&event("Waiting", "PodsLeft", error.clone()), out)?;
                }
                self.error = error;
                Ok(None)
            }
        }
    }

    fn print(&self, event: &DrainEvent, out: &mut dyn Write) -> Result<(), Failure> {
        match self.output {
            Output::Text => writeln!(out, "{}", event.line())?,
            Output::Json => output::document(out, "DrainEvent", event)?,
        }
        out.flush()?;
        Ok(())
    }
}

/// Returns the present state of all objects of a kind, or of that of a name, and then each change. An object that is gone
/// comes once more, with a deletion time. Ends with an error only if the objects cannot be listed.
fn changes<K>(api: Api<K>, name: Option<String>) -> impl Stream<Item = Result<Option<K>, Failure>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let fields = name.map(|name| format!("metadata.name={name}"));
    let (list, watch) = (
        ListParams {
            field_selector: fields.clone(),
            ..ListParams::default()
        },
        WatchParams {
            field_selector: fields,
            ..WatchParams::default()
        },
    );
    let opened = move |first: bool| {
        let (api, list, watch) = (api.clone(), list.clone(), watch.clone());
        async move {
            let since = Instant::now();
            let mut told = first;
            loop {
                if !first {
                    sleep(AGAIN).await;
                }
                match open(&api, &list, &watch).await {
                    Ok(found) => return Some((found, false)),
                    // The cluster has no such kind: nothing will ever come.
                    Err(kube::Error::Api(status)) if status.code == 404 => {
                        return Some((stream::pending().boxed(), false));
                    }
                    Err(error) if first || is_refusal(&error) => {
                        return Some((stream::iter([Err(Failure::Request(error))]).boxed(), false));
                    }
                    // The API server may be restarting. The drain goes on meanwhile.
                    Err(error) => {
                        if !told && since.elapsed() > UNHEARD {
                            eprintln!("nothing was heard from the API server for a while: {error}");
                            told = true;
                        }
                    }
                }
            }
        }
    };
    stream::unfold(true, opened).flatten()
}

/// Returns whether the API server has refused a request, which it will do again.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

type Found<K> = stream::BoxStream<'static, Result<Option<K>, Failure>>;

async fn open<K>(api: &Api<K>, list: &ListParams, watch: &WatchParams) -> kube::Result<Found<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let present = api.list(list).await?;
    let version = present.metadata.resource_version.clone().unwrap_or_default();
    let events = api.watch(watch, &version).await?;
    let later = events.filter_map(|event| async {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Some(Ok(Some(object))),
            Ok(WatchEvent::Deleted(mut object)) => {
                let now = || Time(clock::now());
                object.meta_mut().deletion_timestamp.get_or_insert_with(now);
                Some(Ok(Some(object)))
            }
            // It is opened again, from a new list.
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => None,
        }
    });
    // An object that does not exist is a state too.
    let first: Vec<Result<Option<K>, Failure>> = if present.items.is_empty() {
        vec![Ok(None)]
    } else {
        present.items.into_iter().map(|object| Ok(Some(object))).collect()
    };
    Ok(stream::iter(first).chain(later).boxed())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn maintenance(status: &Value, deleted: bool) -> Seen {
        let mut object = json!({"metadata": {"name": "m"}, "spec": {"nodeName": "worker-1"}, "status": status});
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-27T14:00:00Z");
        }
        Seen::Maintenance(Ok(Some(Box::new(serde_json::from_value(object).unwrap()))))
    }

    /// Returns the exit codes for a series of changes, and the printed lines without their times.
    fn course(changes: Vec<Seen>) -> (Vec<Option<Exit>>, Vec<String>) {
        let (mut course, mut out) = (Course::new("worker-1", Output::Text), Vec::new());
        let exits = changes.into_iter().map(|seen| course.take(seen, &mut out).unwrap());
        let exits = exits.collect();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned());
        (exits, lines.collect())
    }

    #[test]
    fn end_of_the_maintenance_is_the_end_of_the_view() {
        for (changes, exit, line) in [
            (
                vec![
                    maintenance(&json!({"phase": "Running"}), false),
                    maintenance(&json!({"phase": "Succeeded"}), false),
                ],
                Some(Exit::Done),
                "worker-1 - Empty MaintenanceSucceeded it is safe to switch the node off",
            ),
            (
                vec![maintenance(&json!({"phase": "Failed", "lastError": "too late"}), false)],
                Some(Exit::Error),
                "worker-1 - Open MaintenanceFailed too late",
            ),
            (
                vec![maintenance(&json!({}), false), maintenance(&json!({}), true)],
                Some(Exit::CalledOff),
                "worker-1 - Open MaintenanceStopped somebody has called the maintenance off",
            ),
        ] {
            let (exits, lines) = course(changes);
            assert_eq!(
                (exits.last().copied().flatten(), lines.last().map(String::as_str)),
                (exit, Some(line))
            );
        }
    }

    #[test]
    fn errors_are_printed_once_and_other_nodes_not_at_all() {
        let waits = || maintenance(&json!({"phase": "Running", "lastError": "pg-0 waits"}), false);
        let other = json!({"metadata": {"name": "o"}, "spec": {"nodeName": "worker-2"}, "status": {"phase": "Failed"}});
        let other = Seen::Maintenance(Ok(Some(Box::new(serde_json::from_value(other).unwrap()))));
        // One that was being deleted before it was followed is not the one that is followed.
        let old = maintenance(&json!({}), true);
        let (exits, lines) = course(vec![old, other, waits(), waits(), Seen::Silence]);
        assert_eq!(exits, [None; 5]);
        assert_eq!(lines, ["worker-1 - Waiting PodsLeft pg-0 waits"]);
    }

    #[test]
    fn timeout_ends_the_view_only() {
        assert_eq!(course(vec![Seen::TimedOut]).0, [Some(Exit::NotInTime)]);
        assert_eq!(course(vec![Seen::Interrupted]).0, [Some(Exit::Done)]);
    }
}
