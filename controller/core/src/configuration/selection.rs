//! Selection of the configuration object in force where several exist.

use std::collections::BTreeMap;

/// The only name that the HyperConverged operator accepts for its object; preferred over others.
pub const USUAL_NAME: &str = "kubevirt-hyperconverged";

/// Default list of namespaces to search, in this order.
pub const NAMESPACES: [&str; 4] = [
    drydock_api::NAMESPACE,
    "kubevirt-hyperconverged",
    "openshift-cnv",
    "kubevirt",
];

/// An object that could configure the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Revision that changes with the object: generation, or resourceVersion of a ConfigMap.
    pub revision: String,
}

/// Why an object is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotInForce {
    /// The namespace of the object is not among those that are searched for configuration.
    Namespace,
    /// Another object (`namespace/name`) takes precedence.
    Superseded(String),
}

impl NotInForce {
    /// Returns the condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Namespace => "NamespaceNotWatched",
            Self::Superseded(_) => "Superseded",
        }
    }

    /// Returns the reason as a human-readable sentence.
    pub fn sentence(&self, namespaces: &[String]) -> String {
        match self {
            Self::Namespace => format!(
                "the configuration is read only from the namespaces {}",
                namespaces.join(", ")
            ),
            Self::Superseded(other) => format!("{other} takes precedence and is in force"),
        }
    }
}

/// Which object of one kind is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectChoice {
    /// The object in force, as an index into the candidates.
    pub in_force: Option<usize>,
    /// The other candidates, as indices, each with the reason why it is not in force.
    pub others: BTreeMap<usize, NotInForce>,
}

/// Chooses the object in force from the first of `namespaces` that contains an object: the object with the usual name,
/// else the first by name.
pub fn choose(objects: &[Reference], namespaces: &[String]) -> ObjectChoice {
    let rank = |object: &Reference| {
        let namespace = namespaces.iter().position(|namespace| *namespace == object.namespace)?;
        Some((namespace, object.name != USUAL_NAME, object.name.clone()))
    };
    let in_force = (0..objects.len())
        .filter_map(|index| Some((rank(objects.get(index)?)?, index)))
        .min()
        .map(|(_, index)| index);
    let winner = in_force.and_then(|index| objects.get(index));
    let others = objects
        .iter()
        .enumerate()
        .filter(|(index, _)| Some(*index) != in_force)
        .map(|(index, object)| {
            let why = match winner {
                Some(winner) if rank(object).is_some() => {
                    NotInForce::Superseded(format!("{}/{}", winner.namespace, winner.name))
                }
                _ => NotInForce::Namespace,
            };
            (index, why)
        })
        .collect();
    ObjectChoice { in_force, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(namespace: &str, name: &str) -> Reference {
        Reference {
            namespace: namespace.into(),
            name: name.into(),
            revision: "1".into(),
        }
    }

    #[test]
    fn first_namespace_wins_and_others_get_a_reason() {
        let namespaces = NAMESPACES.map(str::to_owned);
        let objects = [
            at("kubevirt", "kubevirt-hyperconverged"),
            at("openshift-cnv", "z"),
            at("openshift-cnv", "kubevirt-hyperconverged"),
            at("tenant", "kubevirt-hyperconverged"),
        ];
        let choice = choose(&objects, &namespaces);
        assert_eq!(choice.in_force, Some(2));
        let winner = NotInForce::Superseded("openshift-cnv/kubevirt-hyperconverged".into());
        assert_eq!(
            choice.others,
            BTreeMap::from([(0, winner.clone()), (1, winner), (3, NotInForce::Namespace)])
        );
        assert_eq!(choose(&objects[3..], &namespaces).in_force, None);
        assert_eq!(
            choose(&[at("drydock", "b"), at("drydock", "a")], &namespaces).in_force,
            Some(1)
        );
    }
}
