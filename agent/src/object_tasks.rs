//! A task for each object that this node serves: it receives what the watches show of its object, and is stopped when
//! they no longer show the object.

use std::collections::{BTreeMap, BTreeSet};

use drydock_runtime::{CancellationToken, Process};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::watch;

/// A task's observation of its object.
pub(crate) trait TaskObservation {
    /// Returns whether `other` has a change that the task has to handle.
    fn differs(&self, other: &Self) -> bool;
}

/// Returns whether two versions of a pod differ.
pub(crate) fn pod_differs(one: Option<&Pod>, other: Option<&Pod>) -> bool {
    one.map(ResourceExt::resource_version) != other.map(ResourceExt::resource_version)
}

/// The tasks of one kind of object.
pub(crate) struct ObjectTasks<K, S> {
    process: Process,
    running: BTreeMap<K, RunningTask<S>>,
}

/// The task of one object.
struct RunningTask<S> {
    seen: watch::Sender<S>,
    stop: CancellationToken,
}

impl<K: Ord, S: TaskObservation + Send + Sync + 'static> ObjectTasks<K, S> {
    /// Creates no task yet. The process waits for those that will run.
    pub(crate) fn new(process: Process) -> Self {
        Self {
            process,
            running: BTreeMap::new(),
        }
    }

    /// Returns how many objects have a task.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Passes an observation of an object to its task. If there is no task, `start` returns the name and the future of a new
    /// one, which is dropped when it has to stop.
    pub(crate) fn update(
        &mut self,
        key: K,
        seen: S,
        start: impl FnOnce(watch::Receiver<S>) -> (String, BoxFuture<'static, ()>),
    ) {
        if let Some(task) = self.running.get(&key) {
            task.seen.send_if_modified(|before| {
                let changed = before.differs(&seen);
                *before = seen;
                changed
            });
            return;
        }
        let (sender, receiver) = watch::channel(seen);
        let (name, task) = start(receiver);
        let stop = self.process.stopping().child_token();
        let stopped = stop.clone();
        self.process.spawn(name, async move {
            stopped.run_until_cancelled(task).await;
        });
        self.running.insert(key, RunningTask { seen: sender, stop });
    }

    /// Stops the tasks of all objects but those that are present. Returns the keys of those that it stopped.
    pub(crate) fn stop_others(&mut self, present: &BTreeSet<K>) -> Vec<K> {
        let others = self.running.extract_if(.., |key, _| !present.contains(key));
        others
            .map(|(key, task)| {
                task.stop.cancel();
                key
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    /// The observation of the tests' tasks: only the version counts.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Version(u32, &'static str);

    impl TaskObservation for Version {
        fn differs(&self, other: &Self) -> bool {
            self.0 != other.0
        }
    }

    /// The tasks of the tests and their reports: each handles a change by reporting it, and reports nothing when it is
    /// dropped.
    struct Reports {
        sender: mpsc::UnboundedSender<(&'static str, Version)>,
        received: mpsc::UnboundedReceiver<(&'static str, Version)>,
        tasks: ObjectTasks<&'static str, Version>,
        process: Process,
    }

    impl Reports {
        fn new() -> Self {
            let (sender, received) = mpsc::unbounded_channel();
            let process = Process::new();
            let tasks = ObjectTasks::new(process.clone());
            Self {
                sender,
                received,
                tasks,
                process,
            }
        }

        fn update(&mut self, key: &'static str, seen: Version) {
            let sender = self.sender.clone();
            self.tasks.update(key, seen, |mut receiver| {
                let task = async move {
                    loop {
                        let _ = sender.send((key, *receiver.borrow_and_update()));
                        if receiver.changed().await.is_err() {
                            return;
                        }
                    }
                };
                (format!("task of {key}"), task.boxed())
            });
        }

        async fn next(&mut self) -> Option<(&'static str, Version)> {
            self.received.recv().await
        }

        /// Returns once no task has a sender of reports.
        async fn until_all_have_ended(mut self) {
            drop(self.sender);
            while self.received.recv().await.is_some() {}
        }
    }

    #[tokio::test]
    async fn task_starts_once_and_receives_each_change() {
        let mut reports = Reports::new();
        reports.update("a", Version(1, "first"));
        assert_eq!(reports.next().await, Some(("a", Version(1, "first"))));
        reports.update("a", Version(2, "second"));
        assert_eq!(reports.next().await, Some(("a", Version(2, "second"))));
        assert_eq!(reports.tasks.len(), 1);
    }

    #[tokio::test]
    async fn task_is_not_woken_without_a_difference_but_sees_the_state() {
        let mut reports = Reports::new();
        reports.update("a", Version(1, "first"));
        assert_eq!(reports.next().await, Some(("a", Version(1, "first"))));
        reports.update("a", Version(1, "other fields"));
        // The other task's report would come after one of the first task.
        reports.update("b", Version(1, "of another"));
        assert_eq!(reports.next().await, Some(("b", Version(1, "of another"))));
        assert_eq!(reports.tasks.running["a"].seen.borrow().1, "other fields");
    }

    #[tokio::test]
    async fn tasks_of_absent_objects_are_stopped_and_start_anew() {
        let mut reports = Reports::new();
        for key in ["a", "b"] {
            reports.update(key, Version(1, "first"));
            assert_eq!(reports.next().await, Some((key, Version(1, "first"))));
        }
        assert_eq!(reports.tasks.stop_others(&BTreeSet::from(["b"])), ["a"]);
        assert_eq!(reports.tasks.len(), 1);
        assert!(reports.tasks.stop_others(&BTreeSet::from(["b"])).is_empty());
        reports.update("a", Version(1, "again"));
        assert_eq!(reports.tasks.len(), 2);
        assert_eq!(reports.next().await, Some(("a", Version(1, "again"))));
        reports.tasks.stop_others(&BTreeSet::new());
        reports.until_all_have_ended().await;
    }

    #[tokio::test]
    async fn tasks_end_when_the_process_stops() {
        let mut reports = Reports::new();
        reports.update("a", Version(1, "first"));
        assert!(reports.next().await.is_some());
        reports.process.stop();
        reports.until_all_have_ended().await;
    }
}
