//! Finds misconfigurations of a cluster that runs Drydock, each with a remedy.
//!
//! ```text
//!  Survey: objects as read, and what could not be read ─▶ each rule of each section ─▶ CheckReport ─┬─▶ text
//!                                                                                                   └─▶ JSON
//! ```
//!
//! A rule lists the resources that it needs. If one of them could not be read, the check is skipped, so that nothing
//! unknown is reported as right. Rules read objects only, never Secrets, and take the time from the survey.

mod agents;
mod certificate;
mod configuration;
mod controller;
#[cfg(test)]
mod fixture;
mod guest_checks;
mod kubernetes;
mod maintenance_checks;
mod node_checks;
mod others;
mod render;
mod rights;
#[cfg(test)]
mod tests;
mod webhooks;

use drydock_api::removal::{DRYDOCK, PART_OF};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
            ValidatingWebhookConfiguration,
        },
        apps::v1::{DaemonSet, Deployment},
        batch::v1::CronJob,
        coordination::v1::Lease,
        core::v1::{Namespace, Pod, ResourceQuota},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use serde::Serialize;

pub use kubernetes::DEFINITIONS;
pub use render::text;
pub use rights::NEEDED as NEEDED_RIGHTS;

use crate::{
    plan::Remedy,
    snapshot::{ClusterObjects, Snapshot, UnreadKind},
};

/// Label with the name of a component. The next two constants are its values for Drydock's own components (`deploy/`).
const NAME: &str = "app.kubernetes.io/name";
const CONTROLLER: &str = "drydock-controller";
const AGENT: &str = "drydock-agent";
/// Service of the webhooks and of the subresources API (`deploy/controller/service.yaml`).
pub const SERVICE: &str = "drydock-webhooks";
/// Name of both webhook configurations (`deploy/controller/webhooks.yaml`).
pub const WEBHOOKS: &str = "drydock";
/// CustomResourceDefinition by which KubeVirt's own operator is configured.
pub const KUBEVIRT_DEFINITION: &str = "kubevirts.kubevirt.io";

/// Input of the checks.
///
/// The snapshot also has the objects that plans need, and lists the kinds of objects that could not be read.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Nodes, the reports of their agents, pods, virtual machines, configuration objects and maintenances.
    pub snapshot: Snapshot,
    /// Version of the API server, such as `v1.36.3`.
    pub version: Option<String>,
    /// All Deployments.
    pub deployments: Vec<Deployment>,
    /// All DaemonSets.
    pub daemon_sets: Vec<DaemonSet>,
    /// All CronJobs.
    pub cron_jobs: Vec<CronJob>,
    /// All MutatingWebhookConfigurations in the survey.
    pub mutating: Vec<MutatingWebhookConfiguration>,
    /// All ValidatingWebhookConfigurations in the survey.
    pub validating: Vec<ValidatingWebhookConfiguration>,
    /// ValidatingAdmissionPolicies.
    pub policies: Vec<ValidatingAdmissionPolicy>,
    /// Bindings that put the policies in force.
    pub policy_bindings: Vec<ValidatingAdmissionPolicyBinding>,
    /// APIServices.
    pub api_services: Vec<APIService>,
    /// CustomResourceDefinitions of Drydock, and the one of KubeVirt's operator.
    pub definitions: Vec<CustomResourceDefinition>,
    /// All Leases. The newest renewal time is taken for the time of the cluster.
    pub leases: Vec<Lease>,
    /// All namespaces.
    pub namespaces: Vec<Namespace>,
    /// All ResourceQuotas.
    pub quotas: Vec<ResourceQuota>,
    /// EndpointSlices of the Service [`SERVICE`].
    pub endpoints: Vec<EndpointSlice>,
    /// Rights of the user.
    pub rights: Vec<Right>,
}

/// A right, and whether the user has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Verb of the request, such as `create`.
    pub verb: &'static str,
    /// Resource of the request, such as `nodemaintenances`.
    pub resource: &'static str,
    /// API group of the resource.
    pub group: &'static str,
    /// Whether the user has the right.
    pub allowed: bool,
}

/// The outcome of a check, from the least to the most serious.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// The check found no deviation.
    Ok,
    /// The check could not be carried out.
    Skipped,
    /// The check found a deviation that does not block or lose anything yet.
    Warning,
    /// The check found something that does not work or would block a drain.
    Error,
}

impl CheckOutcome {
    /// Returns the outcome as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// Returns the symbol that is printed with the outcome.
    pub fn mark(self) -> char {
        match self {
            Self::Ok => '√',
            Self::Skipped => '-',
            Self::Warning => '‼',
            Self::Error => '×',
        }
    }
}

/// Result of all checks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Time at which the objects were read.
    pub at: Timestamp,
    /// Sections with the results of their checks.
    pub sections: Vec<Section>,
    /// Kinds of objects that could not be read.
    pub unread: Vec<UnreadKind>,
}

/// Checks of one part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Title of the section.
    pub title: &'static str,
    /// Results of the checks in this section.
    pub checks: Vec<Check>,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Expectation that the check verifies, as a stable text.
    pub name: &'static str,
    /// Most serious outcome of the findings.
    pub outcome: CheckOutcome,
    /// Deviations. If the check was skipped, the reason.
    pub findings: Vec<Finding>,
}

/// A deviation from the expectation of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub outcome: CheckOutcome,
    /// Description of the deviation and its consequences.
    pub message: String,
    /// Action that resolves the finding.
    pub remedy: Option<Remedy>,
}

impl Finding {
    fn error(message: impl Into<String>) -> Self {
        Self::new(CheckOutcome::Error, message)
    }

    fn warning(message: impl Into<String>) -> Self {
        Self::new(CheckOutcome::Warning, message)
    }

    fn new(outcome: CheckOutcome, message: impl Into<String>) -> Self {
        Self {
            outcome,
            message: message.into(),
            remedy: None,
        }
    }

    /// Sets a remedy without a command.
    fn helps(mut self, text: impl Into<String>) -> Self {
        self.remedy = Some(Remedy {
            text: text.into(),
            command: None,
        });
        self
    }

    /// Sets a remedy with the command that carries it out.
    fn helps_by(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.remedy = Some(Remedy {
            text: text.into(),
            command: Some(command.into()),
        });
        self
    }

    /// Sets the remedy of applying Drydock's manifests again.
    fn helps_to_apply(self) -> Self {
        self.helps_by("apply Drydock's manifests again", "kubectl apply -k deploy")
    }
}

/// Definition of a check.
struct Rule {
    name: &'static str,
    /// Resources that the check cannot do without. If one of them could not be read, the check is skipped.
    needs: &'static [&'static str],
    find: fn(&RuleContext<'_>) -> Vec<Finding>,
}

/// The survey, and data that several rules derive from it.
struct RuleContext<'a> {
    survey: &'a Survey,
    snapshot: &'a Snapshot,
    world: ClusterObjects<'a>,
    /// Time of the cluster, see [`cluster_time`].
    now: Timestamp,
}

impl<'a> RuleContext<'a> {
    fn of(survey: &'a Survey) -> Self {
        Self {
            survey,
            snapshot: &survey.snapshot,
            world: ClusterObjects::of(&survey.snapshot),
            now: cluster_time(survey),
        }
    }

    /// Returns the Deployments of the controller, in any namespace.
    fn controllers(&self) -> impl Iterator<Item = &'a Deployment> {
        let all = self.survey.deployments.iter();
        all.filter(|object| is_own(&object.metadata, CONTROLLER))
    }

    /// Returns the DaemonSet of the agents, in any namespace.
    fn agents(&self) -> Option<&'a DaemonSet> {
        let mut all = self.survey.daemon_sets.iter();
        all.find(|object| is_own(&object.metadata, AGENT))
    }

    /// Returns the pods of one component of Drydock that are not being deleted.
    fn own_pods(&self, name: &'static str) -> impl Iterator<Item = &'a Pod> {
        let all = self.snapshot.pods.iter().map(|pod| &**pod);
        all.filter(move |pod| is_own(&pod.metadata, name) && pod.metadata.deletion_timestamp.is_none())
    }

    /// Returns the namespace that Drydock is installed in, which is the namespace of its controller.
    fn namespace(&self) -> &'a str {
        let mut all = self.controllers();
        let found = all.next().and_then(|object| object.metadata.namespace.as_deref());
        found.unwrap_or(drydock_api::NAMESPACE)
    }
}

/// All sections with their rules.
const SECTIONS: [(&str, &[Rule]); 10] = [
    ("Kubernetes", kubernetes::RULES),
    ("Controller", controller::RULES),
    ("Webhooks and API", webhooks::RULES),
    ("Agents", agents::RULES),
    ("Nodes", node_checks::RULES),
    ("Configuration", configuration::RULES),
    ("Other components", others::RULES),
    ("Virtual machines", guest_checks::RULES),
    ("Maintenance", maintenance_checks::RULES),
    ("Rights", rights::RULES),
];

/// Runs all checks.
pub fn check(survey: &Survey) -> CheckReport {
    let context = RuleContext::of(survey);
    CheckReport {
        at: survey.snapshot.at,
        sections: SECTIONS
            .iter()
            .map(|(title, rules)| Section {
                title,
                checks: rules.iter().map(|rule| rule.check(&context)).collect(),
            })
            .collect(),
        unread: survey.snapshot.unread.clone(),
    }
}

impl Rule {
    fn check(&self, context: &RuleContext<'_>) -> Check {
        let unread = &context.snapshot.unread;
        let missing: Vec<UnreadKind> = unread
            .iter()
            .filter(|unread| self.needs.contains(&unread.resource.as_str()))
            .cloned()
            .collect();
        let findings = if missing.is_empty() {
            (self.find)(context)
        } else {
            let message = format!("could not be read: {}", UnreadKind::list(&missing));
            vec![Finding::new(CheckOutcome::Skipped, message)]
        };
        let worst = findings.iter().map(|finding| finding.outcome).max();
        Check {
            name: self.name,
            outcome: worst.unwrap_or(CheckOutcome::Ok),
            findings,
        }
    }
}

impl CheckReport {
    /// Returns the outcome of each check.
    pub fn outcomes(&self) -> impl Iterator<Item = CheckOutcome> {
        let checks = self.sections.iter().flat_map(|section| &section.checks);
        checks.map(|check| check.outcome)
    }
}

/// Returns the time of the cluster: the newest renewal time of any Lease, or the time of the survey if that is earlier.
/// A component of Kubernetes renews a Lease every few seconds. The clock of the user's machine may be fast.
fn cluster_time(survey: &Survey) -> Timestamp {
    let renewals = survey.leases.iter().filter_map(renewed_at);
    renewals.max().unwrap_or(survey.snapshot.at).min(survey.snapshot.at)
}

fn renewed_at(lease: &Lease) -> Option<Timestamp> {
    let spec = lease.spec.as_ref()?;
    spec.renew_time.as_ref().map(|time| time.0)
}

/// Returns whether an object belongs to the component of Drydock with this name.
fn is_own(metadata: &ObjectMeta, name: &str) -> bool {
    let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key));
    label(NAME).is_some_and(|value| value == name) && label(PART_OF).is_some_and(|value| value == DRYDOCK)
}

/// Returns `namespace/name`, or the name alone if the object has no namespace.
fn full_name(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match &metadata.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

fn namespace_of(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or_default()
}

fn name_of(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

/// Returns the seconds from `then` to `now`, at least 0.
fn since(now: Timestamp, then: Timestamp) -> u64 {
    u64::try_from(now.duration_since(then).as_secs()).unwrap_or(0)
}

/// Returns whether more time than `limit` has passed from `then` to `now`.
fn is_older(now: Timestamp, then: Timestamp, limit: SignedDuration) -> bool {
    now.duration_since(then) > limit
}

fn is_pod_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
