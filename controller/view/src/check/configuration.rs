//! Checks of the objects that configure the cluster.

use drydock_api::{legacy::CONFIG_MAP, reasons::hyperconverged as types};
use drydock_core::{
    conditions::find,
    configuration::{
        gathering::sources,
        hyperconverged,
        selection::{NAMESPACES, NotInForce, Reference, choose},
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Finding, Rule, RuleContext, full_name, name_of, namespace_of};

/// Reasons of the condition `InForce` that other checks report: another object is in force, or the namespace is not
/// watched.
const REPORTED_ELSEWHERE: [&str; 2] = ["Superseded", "NamespaceNotWatched"];
/// Reason of the condition `InForce` if a value is not allowed.
const REFUSED: &str = "Refused";
/// Kinds of configuration objects, in the spelling of kubectl: HyperConverged, and the ConfigMap of the legacy
/// configuration.
const HYPERCONVERGED: &str = "hyperconverged";
const LEGACY: &str = "configmap";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "configuration has allowed values",
        needs: &["hyperconvergeds", "configmaps"],
        find: allowed,
    },
    Rule {
        name: "nodes follow the configuration",
        needs: &["hyperconvergeds"],
        find: followed,
    },
    Rule {
        name: "one object of each kind configures the cluster",
        needs: &["hyperconvergeds", "configmaps"],
        find: single,
    },
    Rule {
        name: "no legacy configuration is mixed with a HyperConverged",
        needs: &["hyperconvergeds", "configmaps"],
        find: mixed,
    },
];

fn references<'a>(objects: impl Iterator<Item = &'a ObjectMeta>) -> Vec<Reference> {
    let references = objects.map(|metadata| Reference {
        namespace: namespace_of(metadata).to_owned(),
        name: name_of(metadata).to_owned(),
        revision: String::new(),
    });
    references.collect()
}

/// Returns references to the configuration objects of both kinds.
fn objects(context: &RuleContext<'_>) -> [(&'static str, Vec<Reference>); 2] {
    let snapshot = context.snapshot;
    let maps = snapshot.config_maps.iter().map(|object| &object.metadata);
    [
        (
            LEGACY,
            references(maps.filter(|metadata| name_of(metadata) == CONFIG_MAP)),
        ),
        (
            HYPERCONVERGED,
            references(snapshot.hyperconvergeds.iter().map(|object| &object.metadata)),
        ),
    ]
}

fn allowed(context: &RuleContext<'_>) -> Vec<Finding> {
    let snapshot = context.snapshot;
    let namespaces = NAMESPACES.map(str::to_owned);
    let sources = sources(&snapshot.config_maps, &snapshot.hyperconvergeds, &namespaces);
    let mut found = Vec::new();
    for source in sources {
        let Reference { namespace, name, .. } = &source.reference;
        for problem in &source.parsed.problems {
            let message = format!(
                "{} {namespace}/{name}: {problem}; the whole object is refused, and the previous configuration stays \
                 in force",
                source.kind
            );
            found.push(Finding::error(message).helps_by(
                "change the value",
                format!("kubectl edit -n {namespace} {} {name}", source.kind.to_lowercase()),
            ));
        }
    }
    found
}

fn followed(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for object in &context.snapshot.hyperconvergeds {
        let Some(status) = &object.status else { continue };
        let name = full_name(&object.metadata);
        for type_ in [types::IN_FORCE, types::DEFAULT_CPU_MODEL_OFFERED] {
            let Some(condition) = find(&status.conditions, type_).filter(|condition| condition.status == "False")
            else {
                continue;
            };
            if REPORTED_ELSEWHERE.contains(&condition.reason.as_str()) {
                continue;
            }
            // Another check reports values that are not allowed.
            if condition.reason == REFUSED && !hyperconverged::parse(&object.spec).problems.is_empty() {
                continue;
            }
            let what = if type_ == types::IN_FORCE {
                "is not completely in force"
            } else {
                "has a default CPU model that no node offers"
            };
            let message = format!("HyperConverged {name} {what}: {}", condition.message);
            found.push(Finding::warning(message).helps_by(
                "wait a moment; then check the agents of the named nodes, or change the value",
                format!(
                    "kubectl get -n {} hyperconverged {} -o wide",
                    namespace_of(&object.metadata),
                    name_of(&object.metadata)
                ),
            ));
        }
    }
    found
}

fn single(context: &RuleContext<'_>) -> Vec<Finding> {
    let namespaces = NAMESPACES.map(str::to_owned);
    let mut found = Vec::new();
    for (kind, objects) in objects(context) {
        for (index, why) in choose(&objects, &namespaces).others {
            let Some(Reference { namespace, name, .. }) = objects.get(index) else {
                continue;
            };
            let message = format!("{kind} {namespace}/{name} has no effect: {}", why.sentence(&namespaces));
            let text = match why {
                NotInForce::Superseded(_) => "copy the values to the object in force, and delete this object",
                NotInForce::Namespace => "create the object in one of these namespaces, and delete this object",
            };
            found
                .push(Finding::warning(message).helps_by(text, format!("kubectl delete -n {namespace} {kind} {name}")));
        }
    }
    found
}

fn mixed(context: &RuleContext<'_>) -> Vec<Finding> {
    let namespaces = NAMESPACES.map(str::to_owned);
    let [legacy, current] = objects(context).map(|(_, objects)| {
        let choice = choose(&objects, &namespaces);
        choice.in_force.and_then(|index| objects.get(index).cloned())
    });
    let (Some(legacy), Some(current)) = (legacy, current) else {
        return Vec::new();
    };
    let message = format!(
        "ConfigMap {}/{} and HyperConverged {}/{} are both in force: settings that the HyperConverged does not have \
         come from the ConfigMap",
        legacy.namespace, legacy.name, current.namespace, current.name
    );
    vec![Finding::warning(message).helps_by(
        "move the values of the ConfigMap to the HyperConverged, except debug.useEmulation",
        format!("kubectl edit -n {} configmap {}", legacy.namespace, legacy.name),
    )]
}
