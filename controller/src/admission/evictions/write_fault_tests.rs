//! Tests of the response to an eviction for which a write fails.

use drydock_core::eviction::own_pdb;
use drydock_runtime::fake::WriteFault;
use http::Method;
use serde_json::json;

use super::{
    tests::{evictions, instance, moved, pod, review_request, text},
    *,
};

/// The eviction is refused if the instance could not be marked. After a conflict, the mark is repeated.
#[tokio::test(start_paused = true)]
async fn failed_mark_is_refused_so_that_the_eviction_is_repeated() {
    for fault in WriteFault::ALL {
        let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
        let question = review_request(|_| {});
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let patch = server.next_request().await;
            assert_eq!(patch.method, Method::PATCH, "{fault:?}");
            patch.fail(fault);
            if fault != WriteFault::Conflict {
                return;
            }
            for stored in [json!(pod()), json!(instance(|_| {}))] {
                let read = server.next_request().await;
                assert_eq!(read.method, Method::GET, "{fault:?}");
                read.with(&stored);
            }
            let patch = server.next_request().await;
            assert_eq!(patch.method, Method::PATCH, "{fault:?}");
            patch.with(&json!(instance(|_| {})));
        });
        assert!(!response.allowed, "{fault:?}");
        let (code, reason, message) = text(&response);
        assert_eq!((code, reason), (429, "TooManyRequests"), "{fault:?}");
        let is_marked = fault == WriteFault::Conflict;
        assert_eq!(
            message.contains("triggered evacuation"),
            is_marked,
            "{fault:?}: {message}"
        );
        assert!(server.is_left_alone().await, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_note_of_the_descheduler_keeps_the_mark() {
    for fault in WriteFault::ALL {
        let (evictions, mut server, _changed) = evictions(vec![instance(|_| {})], vec![pod()], vec![]);
        let question = review_request(|request| {
            request["object"]["metadata"]["annotations"] = json!({REQUESTED_BY: BY_DESCHEDULER});
        });
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let mark = server.next_request().await;
            assert!(mark.path().ends_with("/status"), "{fault:?}");
            mark.with(&json!(instance(|_| {})));
            let note = server.next_request().await;
            assert!(note.path().ends_with("/web"), "{fault:?}");
            note.fail(fault);
        });
        assert!(!response.allowed, "{fault:?}");
        assert!(text(&response).2.contains("triggered evacuation"), "{fault:?}");
        assert!(server.is_left_alone().await, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_deletion_of_a_left_pod_releases_the_pdb() {
    for fault in WriteFault::ALL {
        let own = own_pdb::of(&pod()).unwrap();
        let (evictions, mut server, _changed) = evictions(vec![moved()], vec![pod()], vec![own]);
        let question = review_request(|_| {});
        let (response, ()) = tokio::join!(evictions.review(&question), async {
            let pod = server.next_request().await;
            assert!(
                pod.method == Method::DELETE && pod.path().contains("/pods/"),
                "{fault:?}"
            );
            pod.fail(fault);
            // After a conflict, which shows that the pod was replaced, no PDB is deleted.
            if fault != WriteFault::Conflict {
                let pdb = server.next_request().await;
                assert!(
                    pdb.path().contains("/poddisruptionbudgets/"),
                    "{fault:?}: {}",
                    pdb.path()
                );
                pdb.fail(fault);
            }
        });
        // The API server itself counts the PDB, if it still exists.
        assert!(response.allowed, "{fault:?}");
        assert!(server.is_left_alone().await, "{fault:?}");
    }
}
