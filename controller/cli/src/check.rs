//! `kubectl drydock check`: reads the objects that the checks need.

use std::{fmt::Debug, io::Write};

use drydock_view::{
    check::{
        CheckOutcome, CheckReport, DEFINITIONS, KUBEVIRT_DEFINITION, NEEDED_RIGHTS, Right, SERVICE, Survey, WEBHOOKS,
        check, text,
    },
    snapshot::UnreadKind,
};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        batch::v1::CronJob,
        coordination::v1::Lease,
        core::v1::{Namespace, ResourceQuota},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::version::Info,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{
    Terminal,
    arguments::OutputFormat,
    failure::{CommandError, Exit},
    output,
    read::{self, FORBIDDEN, readable_snapshot, unread, useful},
};

/// Prints the report of the cluster's misconfigurations.
///
/// # Errors
/// If the API server cannot be reached, or rejects the user.
pub(crate) async fn print(
    client: &Client,
    output: OutputFormat,
    now: Timestamp,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let report = report(client, now).await?;
    match output {
        OutputFormat::Text => write!(out, "{}", text(&report, terminal.width))?,
        OutputFormat::Json => output::document(out, "CheckReport", &report)?,
    }
    Ok(exit(&report))
}

/// Reads the cluster, and returns the report of its misconfigurations.
///
/// # Errors
/// If the API server cannot be reached, or rejects the user.
pub(crate) async fn report(client: &Client, now: Timestamp) -> Result<CheckReport, CommandError> {
    Ok(check(&survey(client, now).await?))
}

/// Returns the exit code of a report. An error has precedence over a skipped check.
fn exit(report: &CheckReport) -> Exit {
    let is_any = |outcome| report.outcomes().any(|other| other == outcome);
    if is_any(CheckOutcome::Error) {
        Exit::Blocked
    } else if !is_any(CheckOutcome::Skipped) {
        Exit::Done
    } else if report.unread.iter().any(|unread| unread.why == FORBIDDEN) {
        Exit::NotAllowed
    } else {
        Exit::Error
    }
}

/// Objects of a kind that were read, and the kind with the reason if the request failed.
type ListedObjects<T> = (Vec<T>, Option<UnreadKind>);

/// Returns the objects that were read, and adds a failure to `missing`.
fn noting<T>(missing: &mut Vec<UnreadKind>, (found, unread): ListedObjects<T>) -> Vec<T> {
    missing.extend(unread);
    found
}

/// Reads all objects that the checks need.
///
/// # Errors
/// If the API server cannot be reached, or rejects the user.
async fn survey(client: &Client, at: Timestamp) -> Result<Survey, CommandError> {
    let (version, no_version) = version(client).await?;
    let named = format!("metadata.name={WEBHOOKS}");
    let endpoints = ListParams::default().labels(&format!("kubernetes.io/service-name={SERVICE}"));
    let (snapshot, workloads, admission, rest) = tokio::join!(
        readable_snapshot(client, at),
        async {
            tokio::join!(
                useful::<Deployment>(client, "deployments", None),
                useful::<DaemonSet>(client, "daemonsets", None),
                useful::<CronJob>(client, "cronjobs", None),
                useful::<Lease>(client, "leases", None),
                useful::<Namespace>(client, "namespaces", None),
                useful::<ResourceQuota>(client, "resourcequotas", None),
            )
        },
        async {
            tokio::join!(
                useful(client, "mutatingwebhookconfigurations", Some(&named)),
                useful(client, "validatingwebhookconfigurations", Some(&named)),
                useful(client, "validatingadmissionpolicies", None),
                useful(client, "validatingadmissionpolicybindings", None),
            )
        },
        async {
            tokio::join!(
                useful::<APIService>(client, "apiservices", None),
                with_labels(client, "endpointslices", &endpoints),
                custom_resource_definitions(client),
                rights(client),
            )
        },
    );
    let mut missing = snapshot.unread.clone();
    missing.extend(no_version);
    let mut survey = Survey {
        version: version.map(|version| version.git_version),
        deployments: noting(&mut missing, workloads.0),
        daemon_sets: noting(&mut missing, workloads.1),
        cron_jobs: noting(&mut missing, workloads.2),
        leases: noting(&mut missing, workloads.3),
        namespaces: noting(&mut missing, workloads.4),
        quotas: noting(&mut missing, workloads.5),
        mutating: noting(&mut missing, admission.0),
        validating: noting(&mut missing, admission.1),
        policies: noting(&mut missing, admission.2),
        policy_bindings: noting(&mut missing, admission.3),
        api_services: noting(&mut missing, rest.0),
        endpoints: noting(&mut missing, rest.1),
        definitions: noting(&mut missing, rest.2),
        rights: noting(&mut missing, rest.3),
        snapshot,
    };
    missing.sort();
    missing.dedup();
    survey.snapshot.unread = missing;
    Ok(survey)
}

/// Reads the version of the API server. Every authenticated user may read it, so any failure but 403 concerns all
/// requests.
async fn version(client: &Client) -> Result<(Option<Info>, Option<UnreadKind>), CommandError> {
    match client.apiserver_version().await {
        Ok(version) => Ok((Some(version), None)),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let error = kube::Error::Api(status);
            Ok((None, Some(unread("version", &error))))
        }
        Err(error) => Err(CommandError::Request(error)),
    }
}

/// Reads the objects of a kind with these labels. Their number has to fit in one page.
async fn with_labels<K>(client: &Client, resource: &str, parameters: &ListParams) -> ListedObjects<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match Api::<K>::all(client.clone()).list(parameters).await {
        Ok(list) => (list.items, None),
        Err(error) => (Vec::new(), Some(unread(resource, &error))),
    }
}

/// Reads the definitions of Drydock's kinds and the definition of KubeVirt's operator, each by its name, because the
/// definitions of other components can be numerous and large.
async fn custom_resource_definitions(client: &Client) -> ListedObjects<CustomResourceDefinition> {
    let names: Vec<String> = DEFINITIONS
        .iter()
        .map(|(name, _)| *name)
        .chain([KUBEVIRT_DEFINITION])
        .map(|name| format!("metadata.name={name}"))
        .collect();
    let all = names
        .iter()
        .map(|name| useful(client, "customresourcedefinitions", Some(name)));
    let mut found = (Vec::new(), None);
    for (definitions, missing) in join_all(all).await {
        found.0.extend(definitions);
        found.1 = found.1.or(missing);
    }
    found
}

/// Requests a review of the user's rights from the API server.
async fn rights(client: &Client) -> ListedObjects<Right> {
    let reviewed = NEEDED_RIGHTS.map(|(verb, resource, group)| async move {
        Ok(Right {
            verb,
            resource,
            group,
            allowed: read::is_allowed(client, verb, resource, group).await?,
        })
    });
    let rights: kube::Result<Vec<Right>> = join_all(reviewed).await.into_iter().collect();
    match rights {
        Ok(rights) => (rights, None),
        Err(error) => (Vec::new(), Some(unread("selfsubjectaccessreviews", &error))),
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::{ApiServer, ReceivedRequest, api_server};
    use drydock_view::check::{Check, Section};
    use serde_json::json;

    use super::*;

    /// Responds to all requests: with the version, all rights and empty lists. `special` may respond to a request
    /// instead.
    async fn serve(server: &mut ApiServer, special: impl Fn(ReceivedRequest) -> Option<ReceivedRequest>) {
        loop {
            let Some(request) = special(server.next_request().await) else {
                continue;
            };
            match request.path() {
                "/version" => {
                    let text = [
                        "buildDate",
                        "compiler",
                        "gitCommit",
                        "gitTreeState",
                        "goVersion",
                        "platform",
                    ];
                    let mut version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3"});
                    text.into_iter().for_each(|field| version[field] = "".into());
                    request.with(&version);
                }
                path if path.ends_with("/selfsubjectaccessreviews") => {
                    let mut review = request.body.clone();
                    review["status"] = json!({"allowed": review["spec"]["resourceAttributes"]["verb"] != "delete"});
                    request.with(&review);
                }
                _ => request.list("1", &[]),
            }
        }
    }

    async fn surveyed(special: impl Fn(ReceivedRequest) -> Option<ReceivedRequest>) -> Result<Survey, CommandError> {
        let (client, mut server) = api_server();
        let serving = std::pin::pin!(serve(&mut server, special));
        let survey = std::pin::pin!(survey(&client, Timestamp::UNIX_EPOCH));
        match futures::future::select(survey, serving).await {
            futures::future::Either::Left((survey, _)) => survey,
            futures::future::Either::Right(_) => unreachable!("it serves for ever"),
        }
    }

    #[tokio::test]
    async fn unreadable_kinds_are_named_and_the_rest_is_read() {
        let survey = surveyed(|request| {
            match request.path() {
                "/api/v1/pods" | "/apis/apiextensions.k8s.io/v1/customresourcedefinitions" => {
                    request.refuse(403, "Forbidden");
                }
                "/apis/batch/v1/cronjobs" => request.refuse(500, "InternalError"),
                // The cluster does not have this API group.
                "/apis/nodemaintenance.kubevirt.io/v1beta1/nodemaintenances"
                | "/apis/kubevirt.io/v1/virtualmachineinstances" => request.refuse(404, "NotFound"),
                "/api/v1/namespaces" => request.list("1", &[json!({"metadata": {"name": "shop"}})]),
                _ => return Some(request),
            }
            None
        });
        let survey = survey.await.unwrap();
        let unread: Vec<_> = survey
            .snapshot
            .unread
            .iter()
            .map(|unread| (unread.resource.as_str(), unread.why.as_str()))
            .collect();
        assert_eq!(
            unread,
            [
                ("cronjobs", "refused with 500"),
                ("customresourcedefinitions", FORBIDDEN),
                ("pods", FORBIDDEN)
            ]
        );
        assert_eq!(
            (survey.version.as_deref(), survey.namespaces.len()),
            (Some("v1.36.3"), 1)
        );
        let missing: Vec<_> = survey.rights.iter().filter(|right| !right.allowed).collect();
        assert_eq!(survey.rights.len(), NEEDED_RIGHTS.len());
        assert!(
            missing.iter().all(|right| right.verb == "delete") && missing.len() == 1,
            "{missing:?}"
        );
    }

    #[tokio::test]
    async fn secrets_are_not_read_and_large_kinds_only_by_name() {
        let survey = surveyed(|request| {
            let (path, query) = (request.path().to_owned(), request.query().to_owned());
            assert!(!path.contains("secrets"), "{path}");
            for kind in ["customresourcedefinitions", "configmaps", "webhookconfigurations"] {
                assert!(
                    !path.ends_with(kind) || query.contains("fieldSelector=metadata.name"),
                    "{path}?{query}"
                );
            }
            Some(request)
        });
        assert!(survey.await.unwrap().snapshot.unread.is_empty());
    }

    #[tokio::test]
    async fn user_that_is_rejected_gets_no_report() {
        let survey = surveyed(|request| {
            request.refuse(401, "Unauthorized");
            None
        });
        let failure = survey.await.unwrap_err();
        assert_eq!(failure.exit(), Exit::NotAllowed);
    }

    #[test]
    fn exit_code_is_that_of_the_worst_outcome() {
        for (outcomes, why, expected) in [
            (&[CheckOutcome::Ok, CheckOutcome::Warning][..], None, Exit::Done),
            (
                &[CheckOutcome::Error, CheckOutcome::Skipped],
                Some(FORBIDDEN),
                Exit::Blocked,
            ),
            (
                &[CheckOutcome::Warning, CheckOutcome::Skipped],
                Some(FORBIDDEN),
                Exit::NotAllowed,
            ),
            (
                &[CheckOutcome::Ok, CheckOutcome::Skipped],
                Some("too many requests"),
                Exit::Error,
            ),
            (&[CheckOutcome::Ok], Some(FORBIDDEN), Exit::Done),
        ] {
            let check = |&outcome: &CheckOutcome| Check {
                name: "something",
                outcome,
                findings: Vec::new(),
            };
            let report = CheckReport {
                at: Timestamp::UNIX_EPOCH,
                sections: vec![Section {
                    title: "All",
                    checks: outcomes.iter().map(check).collect(),
                }],
                unread: why
                    .map(|why| UnreadKind {
                        resource: "pods".into(),
                        why: why.into(),
                    })
                    .into_iter()
                    .collect(),
            };
            assert_eq!(exit(&report), expected, "{outcomes:?}");
        }
    }
}
