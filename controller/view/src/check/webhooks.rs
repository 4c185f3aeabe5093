//! Checks of the connection from API servers to the controller: webhooks, the subresources API, and the certificates of
//! both.

use std::collections::{BTreeMap, BTreeSet};

use drydock_core::{certificates::Lifetimes, label_selector::Selector};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::WebhookClientConfig, core::v1::Namespace},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{Finding, Rule, RuleContext, SERVICE, WEBHOOKS, certificate, name_of};
use crate::text::seconds;

/// Names of the webhooks (`deploy/controller/webhooks.yaml`).
pub(super) const MUTATING: [&str; 2] = [
    "virtualmachineinstances.mutate.drydock.dev",
    "virtualmachineinstancemigrations.mutate.drydock.dev",
];
pub(super) const VALIDATING: [&str; 6] = [
    "virtualmachines.validate.drydock.dev",
    "virtualmachineinstances.validate.drydock.dev",
    "virtualmachineinstancereplicasets.validate.drydock.dev",
    "virtualmachineinstancemigrations.validate.drydock.dev",
    EVICTIONS,
    "vnodemaintenance.kb.io",
];
/// The webhook that starts migrations instead of evictions. KubeVirt's name.
const EVICTIONS: &str = "virt-launcher-eviction-interceptor.kubevirt.io";
/// APIServices of the subresources API that virtctl calls (`deploy/controller/apiservices.yaml`).
pub(super) const API_SERVICES: [&str; 2] = ["v1.subresources.kubevirt.io", "v1alpha3.subresources.kubevirt.io"];

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "webhooks are registered",
        needs: &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        find: registered,
    },
    Rule {
        name: "webhooks have certificates",
        needs: &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        find: bundles,
    },
    Rule {
        name: "certificates are valid and renewed",
        needs: &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "hyperconvergeds",
        ],
        find: expiry,
    },
    Rule {
        name: "webhooks see all namespaces with virtual machines",
        needs: &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "namespaces",
            "virtualmachineinstances",
        ],
        find: exempt,
    },
    Rule {
        name: "the Service of the webhooks has endpoints",
        needs: &["endpointslices"],
        find: endpoints,
    },
    Rule {
        name: "the subresources API is available",
        needs: &["apiservices"],
        find: subresources,
    },
];

/// Fields that mutating and validating webhooks have in common.
struct Webhook<'a> {
    name: &'a str,
    is_validating: bool,
    client: &'a WebhookClientConfig,
    selectors: [Option<&'a LabelSelector>; 2],
}

fn webhooks<'a>(context: &RuleContext<'a>) -> Vec<Webhook<'a>> {
    let survey = context.survey;
    let mutating = survey
        .mutating
        .iter()
        .filter(|object| name_of(&object.metadata) == WEBHOOKS);
    let mutating = mutating
        .flat_map(|object| object.webhooks.iter().flatten())
        .map(|webhook| Webhook {
            name: &webhook.name,
            is_validating: false,
            client: &webhook.client_config,
            selectors: [webhook.namespace_selector.as_ref(), webhook.object_selector.as_ref()],
        });
    let validating = survey
        .validating
        .iter()
        .filter(|object| name_of(&object.metadata) == WEBHOOKS);
    let validating = validating
        .flat_map(|object| object.webhooks.iter().flatten())
        .map(|webhook| Webhook {
            name: &webhook.name,
            is_validating: true,
            client: &webhook.client_config,
            selectors: [webhook.namespace_selector.as_ref(), webhook.object_selector.as_ref()],
        });
    mutating.chain(validating).collect()
}

fn registered(context: &RuleContext<'_>) -> Vec<Finding> {
    let present: BTreeSet<&str> = webhooks(context).iter().map(|webhook| webhook.name).collect();
    let missing = |all: &[&'static str]| -> Vec<&str> {
        let missing = all.iter().copied().filter(|name| !present.contains(name));
        missing.collect()
    };
    let mut found = Vec::new();
    let lost = missing(&VALIDATING);
    if !lost.is_empty() {
        let of_evictions = if lost.contains(&EVICTIONS) {
            ", and evictions of guests' pods do not start migrations"
        } else {
            ""
        };
        let message = format!(
            "the ValidatingWebhookConfiguration {WEBHOOKS} lacks {}: requests that these webhooks would deny are \
             accepted{of_evictions}",
            lost.join(", ")
        );
        found.push(Finding::error(message).helps_to_apply());
    }
    let lost = missing(&MUTATING);
    if !lost.is_empty() {
        let message = format!(
            "the MutatingWebhookConfiguration {WEBHOOKS} lacks {}: default values are set only later",
            lost.join(", ")
        );
        found.push(Finding::warning(message).helps_to_apply());
    }
    found
}

fn bundle(client: &WebhookClientConfig) -> Option<&ByteString> {
    client.ca_bundle.as_ref().filter(|bundle| !bundle.0.is_empty())
}

fn bundles(context: &RuleContext<'_>) -> Vec<Finding> {
    let all = webhooks(context);
    let without: Vec<&str> = all
        .iter()
        .filter(|webhook| bundle(webhook.client).is_none())
        .map(|webhook| webhook.name)
        .collect();
    if without.is_empty() {
        return Vec::new();
    }
    let namespace = context.namespace();
    let message = format!(
        "caBundle is not set in {}: API servers do not trust the controller, and deny the requests that these webhooks \
         check",
        without.join(", ")
    );
    vec![Finding::error(message).helps_by(
        "see the logs of the leading controller, which sets caBundle",
        format!("kubectl -n {namespace} logs deployment/drydock-controller --all-pods"),
    )]
}

fn expiry(context: &RuleContext<'_>) -> Vec<Finding> {
    let all = webhooks(context);
    let bundles: BTreeSet<&[u8]> = all
        .iter()
        .filter_map(|webhook| bundle(webhook.client))
        .map(|bundle| bundle.0.as_slice())
        .collect();
    // The controller renews an authority when the time left reaches `renew_before`. At half of that time, the renewal
    // has certainly failed.
    let lifetimes = Lifetimes::from(&context.world.configuration.certificates);
    let late = lifetimes.authority.renew_before / 2;
    let logs = |found: Finding| {
        found.helps_by(
            "see the logs of the leading controller, which renews the certificate authority",
            format!(
                "kubectl -n {} logs deployment/drydock-controller --all-pods",
                context.namespace()
            ),
        )
    };
    let findings = bundles.into_iter().filter_map(|bundle| {
        let Some(end) = certificate::ends(bundle).into_iter().max() else {
            return Some(Finding::error(
                "a caBundle of the webhooks contains no certificate that can be parsed",
            ));
        };
        let left = end.duration_since(context.now);
        if left.is_negative() || left.is_zero() {
            let message = format!(
                "the certificate authority of the webhooks expired at {end}: API servers do not trust the webhooks"
            );
            Some(Finding::error(message))
        } else if left.unsigned_abs() < late {
            let message = format!(
                "the certificate authority of the webhooks expires in {}, and has not been renewed",
                seconds(left.unsigned_abs().as_secs())
            );
            Some(Finding::warning(message))
        } else {
            None
        }
    });
    findings.map(logs).collect()
}

fn exempt(context: &RuleContext<'_>) -> Vec<Finding> {
    let instances = context.snapshot.instances.iter();
    let used: BTreeSet<&str> = instances
        .filter_map(|instance| instance.metadata.namespace.as_deref())
        .collect();
    let namespaces: Vec<&Namespace> = context
        .survey
        .namespaces
        .iter()
        .filter(|namespace| used.contains(name_of(&namespace.metadata)))
        .collect();
    let mut found = Vec::new();
    for webhook in webhooks(context).iter().filter(|webhook| webhook.is_validating) {
        let [by_namespace, by_object] = webhook.selectors;
        let is_empty = |selector: &LabelSelector| {
            let labels = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty);
            labels && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
        };
        if by_object.is_some_and(|selector| !is_empty(selector)) {
            let message = format!(
                "the webhook {} has an objectSelector: objects that the selector exempts are not checked",
                webhook.name
            );
            found.push(Finding::warning(message).helps_to_apply());
        }
        let Some(selector) = by_namespace.and_then(|selector| Selector::new(selector).ok()) else {
            continue;
        };
        let exempt: Vec<&str> = namespaces
            .iter()
            .filter(|namespace| !selector.matches(namespace.metadata.labels.as_ref()))
            .map(|namespace| name_of(&namespace.metadata))
            .collect();
        if !exempt.is_empty() {
            let message = format!(
                "the namespaceSelector of the webhook {} exempts namespaces with virtual machines ({}): these virtual \
                 machines are not protected",
                webhook.name,
                exempt.join(", ")
            );
            found.push(Finding::error(message).helps_to_apply());
        }
    }
    found
}

fn endpoints(context: &RuleContext<'_>) -> Vec<Finding> {
    let namespace = context.namespace();
    let slices = context.survey.endpoints.iter();
    let own = slices.filter(|slice| slice.metadata.namespace.as_deref() == Some(namespace));
    let is_ready = own.flat_map(|slice| &slice.endpoints).any(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        // An unknown readiness counts as ready (discovery.k8s.io/v1).
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    if is_ready {
        return Vec::new();
    }
    let message = format!(
        "the Service {namespace}/{SERVICE} has no ready endpoint: API servers cannot reach the webhooks, and refuse to \
         create or change virtual machines"
    );
    vec![Finding::error(message).helps_by(
        "compare the selector and the ports of the Service with the controller's pods",
        format!("kubectl -n {namespace} describe service {SERVICE}"),
    )]
}

fn subresources(context: &RuleContext<'_>) -> Vec<Finding> {
    let namespace = context.namespace();
    let mut found = Vec::new();
    for name in API_SERVICES {
        let mut all = context.survey.api_services.iter();
        let Some(service) = all.find(|service| name_of(&service.metadata) == name) else {
            let message = format!("the APIService {name} is missing: requests of virtctl with this API version fail");
            found.push(Finding::error(message).helps_to_apply());
            continue;
        };
        let backend = service.spec.as_ref().and_then(|spec| spec.service.as_ref());
        let is_ours = backend.is_some_and(|backend| {
            backend.name.as_deref() == Some(SERVICE) && backend.namespace.as_deref() == Some(namespace)
        });
        if !is_ours {
            let message = format!("the APIService {name} does not refer to the Service {namespace}/{SERVICE}");
            found.push(Finding::error(message).helps_to_apply());
            continue;
        }
        let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let available = conditions.find(|condition| condition.type_ == "Available");
        if available.is_none_or(|condition| condition.status != "True") {
            let why = available.and_then(|condition| condition.message.clone());
            let message = format!(
                "the APIService {name} is not available ({}): virtctl does not work, and no namespace can be deleted",
                why.unwrap_or_else(|| "the API server has not reported a reason".into())
            );
            found.push(Finding::error(message).helps_by(
                "see the conditions of the APIService, and the controller's logs",
                format!("kubectl describe apiservice {name}"),
            ));
        }
    }
    found
}
