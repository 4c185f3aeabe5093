//! Metrics of drains.
//!
//! ```text
//!  Hypervisor.status.drain ─┐
//!  NodeMaintenance.status ──┴─▶ at each scrape: guests and pods left now, by node
//!  a report that is written ──▶ histogram: duration of a drain
//! ```
//!
//! The remaining guests are read from the caches at each scrape, so that a node is exported exactly while it is being
//! drained.

use std::{collections::BTreeMap, fmt};

use drydock_api::{
    Hypervisor,
    hypervisor::{DrainStatus, RemainingState},
    maintenance::Group,
};
use drydock_runtime::{Cache, lease::Leadership, metrics::Deferred};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge, histogram::Histogram},
    registry::Registry,
};

use crate::maintenances::Maintenances;

/// Reason label of blocked guests that `status.drain` counts, but does not list by name.
const NOT_LISTED: &str = "NotListed";
/// Bucket bounds in seconds: from one small guest to a night.
const BOUNDS: [f64; 11] = [
    5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0, 36_000.0,
];

/// Exports metrics of drains. The gauges need the sources that [`Self::watch`] sets.
#[derive(Clone, Debug)]
pub(crate) struct DrainMetrics {
    gauges: Deferred,
    took: Histogram,
}

/// The guests that remain on a node that is being drained.
#[derive(Clone, Debug, Default, PartialEq)]
struct RemainingPods {
    guests: i64,
    blocked: BTreeMap<String, i64>,
    /// Estimated end of the drain in seconds since 1970.
    estimated_end: Option<i64>,
}

/// The gauges of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
struct Gauges {
    /// Remaining guests of each node that is being drained.
    drains: BTreeMap<String, RemainingPods>,
    /// Number of pods that have not left, for each node in maintenance.
    pods: BTreeMap<String, i64>,
}

impl DrainMetrics {
    /// Registers the metrics. Gauges are not exported before [`Self::watch`].
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            gauges: Deferred::register(registry),
            took: Histogram::new(BOUNDS),
        };
        registry.register(
            "drydock_drain_duration_seconds",
            "Time from the first request to empty a node until no virtual machine had to leave the node",
            metrics.took.clone(),
        );
        metrics
    }

    /// Exports gauges from these sources while this process leads.
    pub(crate) fn watch(&self, hypervisors: Cache<Hypervisor>, maintenances: Maintenances, leadership: Leadership) {
        let encode = move |encoder: DescriptorEncoder<'_>| encode(encoder, &gauges(&hypervisors, &maintenances));
        self.gauges.set_while_leading(leadership, encode);
    }

    /// Records the duration of a drain if this write reports its end.
    pub(super) fn written(&self, before: Option<&DrainStatus>, after: Option<&DrainStatus>) {
        if let Some(seconds) = ended(before, after) {
            self.took.observe(seconds);
        }
    }
}

/// Returns the duration of a drain in seconds if this change of the report is its end.
#[expect(clippy::cast_precision_loss, reason = "a drain lasts fewer than 2^52 seconds")]
fn ended(before: Option<&DrainStatus>, after: Option<&DrainStatus>) -> Option<f64> {
    let (before, after) = (before?, after?);
    let end = after.finished_at.as_ref().filter(|_| before.finished_at.is_none())?;
    if after.requested_by.is_empty() {
        return None;
    }
    let seconds = end.0.duration_since(after.started_at.0).as_secs();
    Some(seconds.max(0) as f64)
}

fn gauges(hypervisors: &Cache<Hypervisor>, maintenances: &Maintenances) -> Gauges {
    let mut gauges = Gauges::default();
    hypervisors.for_each(|key, hypervisor| {
        let status = hypervisor.status.as_ref();
        if let Some(left) = status.and_then(|status| status.drain.as_ref()).and_then(left) {
            gauges.drains.insert(key.name.to_string(), left);
        }
    });
    for group in Group::ALL {
        maintenances.of_group(group).shown().for_each(|_, object| {
            let status = object.status.as_ref();
            if let Some(pending) = status.and_then(|status| status.pending) {
                // If a node has two maintenances, one is active, and the other reports the same number or none.
                let pods = gauges.pods.entry(object.spec.node_name.clone()).or_default();
                *pods = pending.max(*pods);
            }
        });
    }
    gauges
}

/// Returns the remaining guests of a node; `None` if its drain is over.
fn left(drain: &DrainStatus) -> Option<RemainingPods> {
    // A cordon alone is not a drain.
    if drain.finished_at.is_some() || drain.requested_by.is_empty() {
        return None;
    }
    let mut blocked = BTreeMap::<String, i64>::new();
    for guest in &drain.remaining {
        if guest.state == RemainingState::Blocked {
            *blocked.entry(guest.reason.clone()).or_default() += 1;
        }
    }
    let others = i64::from(drain.blocked) - blocked.values().sum::<i64>();
    if others > 0 {
        blocked.insert(NOT_LISTED.into(), others);
    }
    Some(RemainingPods {
        guests: drain.left.into(),
        blocked,
        estimated_end: drain.estimated_end.as_ref().map(|end| end.0.as_second()),
    })
}

fn encode(mut encoder: DescriptorEncoder, gauges: &Gauges) -> fmt::Result {
    let gauge = |encoder: &mut DescriptorEncoder, name, help, samples: &[(Vec<(&str, &str)>, i64)]| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(*value).encode(family.encode_family(&labels.as_slice())?)?;
        }
        Ok(())
    };
    let drains = || gauges.drains.iter().map(|(node, left)| (node.as_str(), left));
    let of_node = |(node, value)| (vec![("node", node)], value);
    let guests: Vec<_> = drains().map(|(node, left)| of_node((node, left.guests))).collect();
    let blocked: Vec<_> = drains()
        .flat_map(|(node, left)| {
            let reasons = left.blocked.iter();
            reasons.map(move |(reason, count)| (vec![("node", node), ("reason", reason.as_str())], *count))
        })
        .collect();
    let ends: Vec<_> = drains()
        .filter_map(|(node, left)| Some(of_node((node, left.estimated_end?))))
        .collect();
    let pods: Vec<_> = gauges
        .pods
        .iter()
        .map(|(node, count)| of_node((node.as_str(), *count)))
        .collect();
    for (name, help, samples) in [
        (
            "drydock_drain_guests_left",
            "Virtual machines that have to leave a node that is being emptied",
            guests,
        ),
        (
            "drydock_drain_guests_blocked",
            "Virtual machines that have to leave a node but cannot until the cause is removed",
            blocked,
        ),
        (
            "drydock_drain_estimated_end_timestamp_seconds",
            "Estimated time at which a node that is being emptied will be empty, based on measured migrations",
            ends,
        ),
        (
            "drydock_maintenance_pods_pending",
            "Pods that have to leave a node in maintenance",
            pods,
        ),
    ] {
        gauge(&mut encoder, name, help, &samples)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
