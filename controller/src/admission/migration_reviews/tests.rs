//! Tests of the requests to the API server, and of the verdicts.

use drydock_runtime::fake::{ApiServer, api_server};
use http::Method;
use serde_json::{Value, json};

use super::*;

const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/vm";
const MIGRATION: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations/";

fn instance(phase: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "shop"}, "spec": {"domain": {}}, "status": {"phase": phase},
    })
}

fn migration(name: &str, of: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "namespace": "shop"}, "spec": {"vmiName": of}, "status": {"phase": phase},
    })
}

fn context(instances: &[Value], migrations: &[Value]) -> (GuestContext, ApiServer) {
    let (client, server) = api_server();
    let read = |value: &Value| serde_json::from_value(value.clone()).unwrap();
    let (context, _) = GuestContext::empty(client);
    let instances = instances
        .iter()
        .map(|value| serde_json::from_value(value.clone()).unwrap());
    context.instances.objects.show(instances);
    context.migrations.objects.show(migrations.iter().map(read));
    (context, server)
}

/// An expected request and its response: an object, or none.
type Exchange = (String, Option<Value>);

/// Returns the verdict. The requests to the API server have to be exactly these.
async fn reviewed(instances: &[Value], migrations: &[Value], exchanges: Vec<Exchange>) -> Option<String> {
    let (context, mut server) = context(instances, migrations);
    let served = async move {
        for (path, served) in exchanges {
            let request = server.next_request().await;
            assert_eq!((&request.method, request.path()), (&Method::GET, path.as_str()));
            match served {
                Some(object) => request.with(&object),
                None => request.refuse(404, "NotFound"),
            }
        }
        server
    };
    let key = Key::namespaced("shop", "vm");
    let (refusal, mut server) = tokio::join!(review(&context, &key), served);
    drop(context);
    assert!(server.is_left_alone().await);
    refusal.map(|refusal| refusal.message)
}

#[tokio::test(start_paused = true)]
async fn migration_without_cached_conflict_needs_no_api_request() {
    let running = [instance("Running")];
    assert_eq!(reviewed(&running, &[], vec![]).await, None);
    let others = [
        migration("before", "vm", "Succeeded"),
        migration("failed", "vm", "Failed"),
        migration("another", "db", "Running"),
    ];
    assert_eq!(reviewed(&running, &others, vec![]).await, None);
}

#[tokio::test(start_paused = true)]
async fn refusal_from_a_cache_is_confirmed_by_the_api_server() {
    let missing = "the VMI \"vm\" does not exist under the cluster";
    let ended = "Cannot migrate VMI in finalized state.";
    let busy = "in-flight migration detected. Active migration job (now) is currently already in progress for VMI vm.";
    let one = |served: Option<Value>| vec![(INSTANCE.to_owned(), served)];
    let now = || [migration("now", "vm", "Running")];
    let of = |name: &str, served: Option<Value>| (format!("{MIGRATION}{name}"), served);

    // The cache does not have the instance.
    assert_eq!(reviewed(&[], &[], one(None)).await.as_deref(), Some(missing));
    assert_eq!(reviewed(&[], &[], one(Some(instance("Running")))).await, None);
    assert_eq!(
        reviewed(&[], &[], one(Some(instance("Failed")))).await.as_deref(),
        Some(ended)
    );
    // The instance has ended according to the cache, but another instance may have its name now.
    let failed = [instance("Failed")];
    assert_eq!(
        reviewed(&failed, &[], one(Some(instance("Failed")))).await.as_deref(),
        Some(ended)
    );
    assert_eq!(reviewed(&failed, &[], one(Some(instance("Running")))).await, None);
    assert_eq!(reviewed(&failed, &[], one(None)).await.as_deref(), Some(missing));
    // A migration is in flight according to the cache.
    let running = [instance("Running")];
    let now_is = |served: Option<Value>| vec![of("now", served)];
    let still = now_is(Some(migration("now", "vm", "Running")));
    assert_eq!(reviewed(&running, &now(), still).await.as_deref(), Some(busy));
    let over = now_is(Some(migration("now", "vm", "Succeeded")));
    assert_eq!(reviewed(&running, &now(), over).await, None);
    assert_eq!(reviewed(&running, &now(), now_is(None)).await, None);
    let renamed = now_is(Some(migration("now", "db", "Running")));
    assert_eq!(reviewed(&running, &now(), renamed).await, None);
    // The first migration that is still in flight suffices.
    let several = [
        migration("a", "vm", "Running"),
        migration("now", "vm", "Pending"),
        migration("z", "vm", "Pending"),
    ];
    let both_exchanges = vec![of("a", None), of("now", Some(migration("now", "vm", "Pending")))];
    assert_eq!(
        reviewed(&running, &several, both_exchanges).await.as_deref(),
        Some(busy)
    );
    // A new instance with the same name may be moving already.
    let mut both = one(Some(instance("Running")));
    both.extend(now_is(Some(migration("now", "vm", "Running"))));
    assert_eq!(reviewed(&[], &now(), both).await.as_deref(), Some(busy));
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_migration_review_is_left_to_the_controller() {
    let key = Key::namespaced("shop", "vm");
    for code in [403, 500] {
        let (context, mut server) = context(&[], &[]);
        let served = async { server.next_request().await.refuse(code, "Broken") };
        let (refusal, ()) = tokio::join!(review(&context, &key), served);
        assert_eq!(refusal, None, "{code}");
    }
    // An API server that does not respond does not delay the review beyond its time limit.
    let (context, mut server) = context(&[], &[]);
    let served = async { server.next_request().await };
    let (refusal, _unanswered) = tokio::join!(review(&context, &key), served);
    assert_eq!(refusal, None);
}
