//! Permits for held evictions, and their metrics.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::MAX_HELD_EVICTIONS;

/// Permits for held evictions, [`MAX_HELD_EVICTIONS`] in total. Clones share the permits.
#[derive(Clone, Debug)]
pub(crate) struct HeldEvictions(Arc<Semaphore>);

impl HeldEvictions {
    /// Creates the permits and registers their metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let held = Self(Arc::new(Semaphore::new(MAX_HELD_EVICTIONS)));
        registry.register_collector(Box::new(held.clone()));
        held
    }

    /// Takes a permit, which is returned when it is dropped. Returns `None` if all permits are taken.
    pub(super) fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.0.try_acquire().ok()
    }
}

impl Collector for HeldEvictions {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let held = MAX_HELD_EVICTIONS.saturating_sub(self.0.available_permits());
        for (name, help, value) in [
            (
                "drydock_evictions_held",
                "Evictions whose responses are held until the guest has moved",
                held,
            ),
            (
                "drydock_evictions_held_limit",
                "Maximum number of held evictions; further evictions are refused at once",
                MAX_HELD_EVICTIONS,
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;

    use super::*;

    #[test]
    fn held_eviction_places_are_counted_until_dropped() {
        let mut registry = Registry::default();
        let held = HeldEvictions::register(&mut registry);
        let scraped = || {
            let mut scraped = String::new();
            text::encode(&mut scraped, &registry).unwrap();
            scraped
        };
        let places: Vec<_> = std::iter::from_fn(|| held.place()).collect();
        assert_eq!(places.len(), MAX_HELD_EVICTIONS);
        assert!(scraped().contains("drydock_evictions_held 8"), "{}", scraped());
        drop(places);
        assert!(scraped().contains("drydock_evictions_held 0"), "{}", scraped());
        assert!(scraped().contains("drydock_evictions_held_limit 8"), "{}", scraped());
    }
}
