//! Metrics of open streams, by the names of KubeVirt's virt-api.

use std::{collections::HashMap, sync::Arc};

use drydock_api::{kubevirt::VirtualMachineInstance, node_api::GuestStream};
use drydock_core::subresources::SubresourceOperation;
use drydock_runtime::{CacheChange, clock};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfInstance {
    namespace: String,
    vmi: String,
}

/// Gauges of open streams. An instance without open streams has no gauge.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveStreams {
    consoles: StreamCounts,
    displays: StreamCounts,
    ports: StreamCounts,
    last: Family<OfInstance, Gauge>,
}

#[derive(Clone, Debug, Default)]
struct StreamCounts {
    family: Family<OfInstance, Gauge>,
    counts: Arc<Mutex<HashMap<OfInstance, i64>>>,
}

/// An open stream, until it is dropped.
#[derive(Debug)]
pub(super) struct ActiveStream {
    open: StreamCounts,
    instance: OfInstance,
}

impl ActiveStreams {
    /// Registers the metrics in `registry`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let streams = Self::default();
        registry.register(
            "kubevirt_console_active_connections",
            "Open connections to consoles",
            streams.consoles.family.clone(),
        );
        registry.register(
            "kubevirt_vnc_active_connections",
            "Open connections to displays",
            streams.displays.family.clone(),
        );
        registry.register(
            "kubevirt_portforward_active_tunnels",
            "Open connections to ports",
            streams.ports.family.clone(),
        );
        registry.register(
            "kubevirt_vmi_last_api_connection_timestamp_seconds",
            "Time of the last connection to a console, display or port of a virtual machine instance",
            streams.last.clone(),
        );
        streams
    }

    /// Drops the time of the last connection of a deleted instance, because its name may never be used again.
    pub(crate) fn observe(&self, change: &CacheChange<VirtualMachineInstance>) {
        let CacheChange::Object {
            key,
            old: Some(old),
            new,
        } = change
        else {
            return;
        };
        if new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid) {
            self.last.remove(&OfInstance {
                namespace: key.namespace.as_deref().unwrap_or_default().to_owned(),
                vmi: key.name.to_string(),
            });
        }
    }

    /// Counts a stream as open.
    pub(super) fn begin(&self, operation: SubresourceOperation, namespace: &str, vmi: &str) -> ActiveStream {
        let open = match operation {
            SubresourceOperation::Stream(GuestStream::Console) => &self.consoles,
            SubresourceOperation::Stream(GuestStream::Vnc) => &self.displays,
            _ => &self.ports,
        };
        let instance = OfInstance {
            namespace: namespace.to_owned(),
            vmi: vmi.to_owned(),
        };
        self.last.get_or_create(&instance).set(clock::now().as_second());
        open.add(&instance, 1);
        ActiveStream {
            open: open.clone(),
            instance,
        }
    }
}

impl StreamCounts {
    fn add(&self, instance: &OfInstance, by: i64) {
        let mut counts = self.counts.lock();
        let count = counts.entry(instance.clone()).or_default();
        *count += by;
        if *count == 0 {
            counts.remove(instance);
            self.family.remove(instance);
        } else {
            self.family.get_or_create(instance).set(*count);
        }
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        self.open.add(&self.instance, -1);
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::Key;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn last_connection_is_known_until_the_instance_is_deleted() {
        let mut registry = Registry::default();
        let streams = ActiveStreams::register(&mut registry);
        let instance = |uid: &str| {
            let mut instance = VirtualMachineInstance::new("vm", Default::default());
            instance.metadata.uid = Some(uid.into());
            Some(Arc::new(instance))
        };
        for (old, new, known) in [
            (None, instance("1"), true),
            (instance("1"), instance("1"), true),
            (instance("1"), None, false),
            (instance("1"), instance("2"), false),
        ] {
            drop(streams.begin(SubresourceOperation::Stream(GuestStream::Vnc), "ns", "vm"));
            let key = Key::namespaced("ns", "vm");
            streams.observe(&CacheChange::Object { key, old, new });
            let line = "kubevirt_vmi_last_api_connection_timestamp_seconds{namespace=\"ns\",vmi=\"vm\"}";
            assert_eq!(text(&registry).contains(line), known);
        }
    }

    #[test]
    fn stream_gauge_of_an_instance_exists_only_with_streams() {
        let mut registry = Registry::default();
        let streams = ActiveStreams::register(&mut registry);
        let console = SubresourceOperation::Stream(GuestStream::Console);
        let first = streams.begin(console, "ns", "vm");
        let second = streams.begin(console, "ns", "vm");
        let line = |count| format!("kubevirt_console_active_connections{{namespace=\"ns\",vmi=\"vm\"}} {count}\n");
        assert!(text(&registry).contains(&line(2)));
        drop(first);
        assert!(text(&registry).contains(&line(1)));
        drop(second);
        let text = text(&registry);
        assert!(!text.contains("kubevirt_console_active_connections{"), "{text}");
        assert!(
            text.contains("kubevirt_vmi_last_api_connection_timestamp_seconds{"),
            "{text}"
        );
    }
}
