//! The metric of leader election, with the name and the label that client-go uses.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::Leadership;

/// Returns a source of [`Deferred`](crate::metrics::Deferred) that exports whether this process holds the Lease of this
/// name, according to the clock at the scrape. After a long pause of the process, it does not.
pub fn leader_status(
    lease: &'static str,
    leadership: Leadership,
) -> impl Fn(DescriptorEncoder<'_>) -> fmt::Result + Send + Sync {
    move |mut encoder| {
        let leads = i64::from(leadership.term().is_some());
        let mut family = encoder.encode_descriptor(
            "leader_election_master_status",
            "1 if this process holds the Lease with this name, otherwise 0",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(leads).encode(family.encode_family(&[("name", lease)])?)
    }
}
