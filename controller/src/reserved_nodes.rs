//! Nodes that are reserved for leaving guests with few alternatives. The drain task plans them. The target pod of
//! another guest avoids them if possible, because the scheduler does not know which pods will be created later.

use std::{collections::BTreeSet, sync::Arc};

use drydock_runtime::Key;
use parking_lot::Mutex;

/// Planned node of a guest that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedNode {
    /// Key of the instance.
    pub(crate) guest: Key,
    /// Node that has room for the guest.
    pub(crate) node: String,
    /// Whether the node is reserved for the guest.
    pub(crate) reserved: bool,
}

/// Planned nodes of all guests that leave. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReservedNodes(Arc<Mutex<Vec<PlannedNode>>>);

impl ReservedNodes {
    /// Replaces all planned nodes.
    pub(crate) fn replace(&self, planned: Vec<PlannedNode>) {
        *self.0.lock() = planned;
    }

    /// Returns the nodes that the target pod of a guest should avoid. These are the nodes that are reserved for others,
    /// except the planned node of the guest itself, which has room for all guests that are planned for it.
    pub(crate) fn for_others(&self, guest: &Key) -> Vec<String> {
        let planned = self.0.lock();
        let own = planned.iter().find(|planned| planned.guest == *guest);
        let own = own.map(|own| own.node.as_str());
        let reserved = planned.iter().filter(|planned| planned.reserved);
        let others: BTreeSet<&str> = reserved
            .map(|planned| planned.node.as_str())
            .filter(|node| Some(*node) != own)
            .collect();
        others.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_avoids_nodes_reserved_for_others() {
        let key = |name: &str| Key::namespaced("n", name);
        let planned = |name: &str, node: &str, reserved| PlannedNode {
            guest: key(name),
            node: node.into(),
            reserved,
        };
        let nodes = ReservedNodes::default();
        assert!(nodes.for_others(&key("a")).is_empty());
        nodes.replace(vec![
            planned("a", "x", true),
            planned("b", "x", false),
            planned("c", "y", true),
            planned("d", "y", true),
            planned("e", "z", false),
        ]);
        for (guest, avoided) in [
            ("a", &["y"][..]),
            ("b", &["y"]),
            ("c", &["x"]),
            ("e", &["x", "y"]),
            ("unknown", &["x", "y"]),
        ] {
            assert_eq!(nodes.for_others(&key(guest)), avoided, "{guest}");
        }
        nodes.replace(Vec::new());
        assert!(nodes.for_others(&key("e")).is_empty());
    }
}
