//! Tests in which each write of a node's task fails once with each fault.

use super::*;
use crate::failing_write::FailingWrite;

const CREATE: &str = "creation";
const LABELS: &str = "labels";
const STATUS: &str = "status";

/// Objects that the API server stores.
struct Stored {
    node: Value,
    hypervisor: Option<Value>,
    version: u64,
}

impl Stored {
    fn new() -> Self {
        Self {
            node: serde_json::to_value(node()).unwrap(),
            hypervisor: None,
            version: 1,
        }
    }

    /// Responds to a request, which may be the failing write.
    fn respond(&mut self, request: ReceivedRequest, failing: &mut FailingWrite) {
        let write = match request.path() {
            HYPERVISORS if request.method == "GET" => return count()(request),
            HYPERVISORS if self.hypervisor.is_some() => return request.refuse(409, "AlreadyExists"),
            HYPERVISORS => CREATE,
            NODE => LABELS,
            _ => STATUS,
        };
        failing.respond(request, write, |request| self.execute(request, write));
    }

    /// Executes a write and returns the changed object.
    fn execute(&mut self, request: &ReceivedRequest, write: &str) -> Value {
        self.version += 1;
        let version = json!(self.version.to_string());
        if write == LABELS {
            self.node["metadata"]["labels"] = request.body["metadata"]["labels"].clone();
            self.node["metadata"]["resourceVersion"] = version;
            return self.node.clone();
        }
        let before = self
            .hypervisor
            .take()
            .unwrap_or_else(|| serde_json::to_value(hypervisor()).unwrap());
        let mut stored = before;
        if write == STATUS {
            stored["status"] = request.body["status"].clone();
        }
        stored["metadata"]["resourceVersion"] = version;
        self.hypervisor = Some(stored.clone());
        stored
    }

    fn caches(&self) -> AgentCaches {
        let node = serde_json::from_value(self.node.clone()).unwrap();
        let hypervisor = self.hypervisor.clone();
        AgentCaches::filled(
            "n",
            Some(node),
            hypervisor.map(|stored| serde_json::from_value(stored).unwrap()),
        )
    }
}

/// Runs rounds until one writes nothing. If `are_shown`, the watches show the stored objects after each round.
async fn settle(mut failing: FailingWrite, are_shown: bool) {
    let mut fixture = fixture(Some(node())).await;
    let mut stored = Stored::new();
    for _ in 0..6 {
        let mut writes = 0;
        let wake = {
            let Fixture { task, server, .. } = &mut fixture;
            let round = task.round(clock::now());
            tokio::pin!(round);
            loop {
                tokio::select! {
                    biased;
                    wake = &mut round => break wake,
                    request = server.next_request() => {
                        writes += usize::from(request.method != "GET");
                        stored.respond(request, &mut failing);
                    }
                }
            }
        };
        if failing.has_failed() && writes == 0 {
            break;
        }
        let waits = fixture.task.backoff.is_reset() || wake.is_some_and(|wake| wake > clock::now());
        assert!(waits, "{failing}: neither done nor due again");
        // The task learns only from the watch of a Hypervisor whose creation was not confirmed.
        if are_shown || (failing.has_failed() && stored.hypervisor.is_some()) {
            fixture.task.caches = stored.caches();
        }
    }
    failing.assert_settled();
    let labels = &stored.node["metadata"]["labels"];
    assert!(labels.is_object(), "{failing}: no labels");
    let status = &stored.hypervisor.as_ref().unwrap()["status"];
    assert!(status["conditions"].is_array(), "{failing}: no status");
    assert!(fixture.task.backoff.is_reset(), "{failing}");
}

#[tokio::test]
async fn each_failed_write_of_a_node_is_repeated_until_stored() {
    for are_shown in [true, false] {
        for failing in FailingWrite::each(&[CREATE, LABELS, STATUS]) {
            settle(failing, are_shown).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn departing_agent_does_not_wait_for_a_failed_report() {
    for mut failing in FailingWrite::each(&[CREATE, LABELS, STATUS]) {
        let mut fixture = fixture(Some(node())).await;
        let mut stored = Stored::new();
        fixture.task.follow();
        let Fixture { task, server, .. } = &mut fixture;
        let start = clock::Instant::now();
        let departing = task.shut_down();
        tokio::pin!(departing);
        loop {
            tokio::select! {
                biased;
                () = &mut departing => break,
                request = server.next_request() => stored.respond(request, &mut failing),
            }
        }
        assert!(failing.has_failed(), "{failing}");
        assert!(start.elapsed() <= Duration::from_secs(5), "{failing}");
    }
}
