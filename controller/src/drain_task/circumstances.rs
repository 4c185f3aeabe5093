//! Circumstances that determine a guest's next migration. They are evaluated again when one of them has changed.

use std::{collections::HashMap, sync::Arc};

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::{configuration::Configuration, placement};
use drydock_runtime::Key;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::{launchers::Launchers, nodes::NodePair};

/// Digests of the circumstances for each guest.
#[derive(Debug, Default)]
pub(super) struct CircumstanceDigests(Mutex<CachedDigests>);

/// Cached digests, and the state that they were computed from.
#[derive(Debug, Default)]
struct CachedDigests {
    nodes: Option<Arc<Vec<NodePair>>>,
    configuration: Option<Arc<Configuration>>,
    /// Resource version and digest of each instance.
    of: HashMap<Key, (Option<String>, String)>,
}

impl CircumstanceDigests {
    /// Returns the digest of the current circumstances.
    pub(super) fn of(&self, launchers: &Launchers, instance: &VirtualMachineInstance) -> String {
        let pairs = launchers.nodes.pairs();
        let configuration = launchers.configuration.get();
        let mut known = self.0.lock();
        if !known.is_of(&pairs, &configuration) {
            *known = CachedDigests {
                nodes: Some(Arc::clone(&pairs)),
                configuration: Some(Arc::clone(&configuration)),
                of: HashMap::new(),
            };
        }
        let (key, version) = (Key::of(instance), instance.resource_version());
        if let Some((of, digest)) = known.of.get(&key)
            && *of == version
        {
            return digest.clone();
        }
        let digest = evaluated(launchers, instance, &pairs, &configuration);
        known.of.insert(key, (version, digest.clone()));
        digest
    }
}

impl CachedDigests {
    fn is_of(&self, pairs: &Arc<Vec<NodePair>>, configuration: &Arc<Configuration>) -> bool {
        let nodes = self.nodes.as_ref().is_some_and(|known| Arc::ptr_eq(known, pairs));
        nodes
            && self
                .configuration
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, configuration))
    }
}

fn evaluated(
    launchers: &Launchers,
    instance: &VirtualMachineInstance,
    pairs: &[NodePair],
    configuration: &Configuration,
) -> String {
    let here = instance.node_name();
    let views: Vec<_> = pairs.iter().map(NodePair::view).collect();
    let source = views.iter().find(|view| Some(view.name) == here);
    let mut needs = launchers.requirements(&instance.spec, source);
    needs.volumes = launchers.claims.bound(instance);
    placement::circumstances(instance, &needs, source, &views, configuration)
}
