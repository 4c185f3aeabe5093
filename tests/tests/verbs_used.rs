//! No service account has a right that it does not use, according to the API server's audit log.
//!
//! This test runs after all other tests, since they make the agents and the controller use their rights.

use std::collections::BTreeSet;

use anyhow::Result;
use drydock_api::leases::NODE_LEASE_NAMESPACE;
use drydock_tests::{Cluster, watching::until};
use k8s_openapi::api::{
    coordination::v1::Lease,
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// API group, resource with subresource, and verb.
type Right = (String, String, String);

fn granted(rules: Option<Vec<PolicyRule>>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules.unwrap_or_default() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.insert((group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
    rights
}

/// Returns the rights that a service account used, and those that RBAC refused.
fn recorded(log: &str, account: &str) -> (BTreeSet<Right>, BTreeSet<Right>) {
    let user = format!("system:serviceaccount:drydock:{account}");
    let (mut used, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        // Tests also use agents' tokens, but with another user agent.
        let ours = event["userAgent"]
            .as_str()
            .is_some_and(|agent| agent.starts_with("drydock-"));
        if event["user"]["username"] != user.as_str() || !ours {
            continue;
        }
        let object = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resource = text(&object["resource"]);
        if let Some(sub) = object["subresource"].as_str() {
            resource = format!("{resource}/{sub}");
        }
        if resource.is_empty() {
            continue;
        }
        let right = (text(&object["apiGroup"]), resource, text(&event["verb"]));
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            refused.insert(right);
        } else {
            // An apply that creates the object needs the right to create it.
            if right.2 == "patch" && event["responseStatus"]["code"] == 201 {
                used.insert((right.0.clone(), right.1.clone(), "create".into()));
            }
            // A streamed list is a watch with initial events. Without streaming, the client sends a list request.
            if right.2 == "watch" && text(&event["requestURI"]).contains("sendInitialEvents=true") {
                used.insert((right.0.clone(), right.1.clone(), "list".into()));
            }
            used.insert(right);
        }
    }
    (used, refused)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn every_right_is_used_and_none_is_missing() -> Result<()> {
    let cluster = Cluster::connect().await?;
    // A Lease that another client has modified is read before it is renewed.
    let leases = Api::<Lease>::namespaced(cluster.client.clone(), NODE_LEASE_NAMESPACE);
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": "by-a-test"}}}));
    let touched = leases.patch(cluster.first(), &PatchParams::default(), &touch).await?;
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    until(leases, cluster.first(), "a later renewal", |lease: &Lease| {
        renewed(lease) > renewed(&touched)
    })
    .await?;
    let log = cluster.all_audit_logs()?;
    for account in ["drydock-agent", "drydock-controller"] {
        let mut rights = granted(
            Api::<ClusterRole>::all(cluster.client.clone())
                .get(account)
                .await?
                .rules,
        );
        for namespace in ["drydock", "drydock-nodes"] {
            let role = Api::<Role>::namespaced(cluster.client.clone(), namespace)
                .get_opt(account)
                .await?;
            rights.extend(granted(role.and_then(|role| role.rules)));
        }
        let (mut used, refused) = recorded(&log, account);
        if account == "drydock-controller" {
            // The tests do not make the controller update the count of a repeated event: one node would have to become
            // unresponsive twice.
            used.insert(("events.k8s.io".into(), "events".into(), "patch".into()));
        }
        // A restarted API server refuses every request for a moment, until it has loaded the roles.
        assert_eq!(
            refused.difference(&rights).collect::<Vec<_>>(),
            Vec::<&Right>::new(),
            "{account} was refused"
        );
        assert_eq!(
            rights.difference(&used).collect::<Vec<_>>(),
            Vec::<&Right>::new(),
            "{account} never uses"
        );
        assert_eq!(
            used.difference(&rights).collect::<Vec<_>>(),
            Vec::<&Right>::new(),
            "{account} uses without a rule"
        );
    }
    Ok(())
}
