//! The metric of leader election, with the name and the label that client-go uses.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::Leadership;

/// Exports whether this process leads, according to the clock at the scrape.
///
/// After a long pause of the process, it does not lead.
#[derive(Debug)]
pub struct LeaderStatus {
    lease: &'static str,
    leadership: Leadership,
}

impl LeaderStatus {
    /// Creates the collector for the Lease of this name.
    pub fn new(lease: &'static str, leadership: Leadership) -> Self {
        Self { lease, leadership }
    }
}

impl Collector for LeaderStatus {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let leads = i64::from(self.leadership.term().is_some());
        let mut family = encoder.encode_descriptor(
            "leader_election_master_status",
            "1 if this process holds the Lease with this name, otherwise 0",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(leads).encode(family.encode_family(&[("name", self.lease)])?)
    }
}
