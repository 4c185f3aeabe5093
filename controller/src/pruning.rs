//! Removal of unused metadata from cached objects.

use drydock_core::launcher_pod::LAST_APPLIED;
use kube::core::ObjectMeta;

/// Removes the metadata that only other writers use: the managed fields, and kubectl's copy of the object, which needs
/// as much memory as the object itself.
pub(crate) fn prune_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}
