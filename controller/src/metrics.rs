//! Metrics of the controller. The names are documented in `deploy/docs/metrics.md`.

use std::sync::atomic::AtomicI64;

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// All metrics of the controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControllerMetrics {
    /// Number of nodes whose agent has become unresponsive since this process started.
    pub(crate) became_unresponsive: Counter,
    /// Number of nodes whose agent is unresponsive now.
    pub(crate) unresponsive: Gauge<i64, AtomicI64>,
    /// Number of nodes with an agent.
    pub(crate) nodes: Gauge<i64, AtomicI64>,
    /// Number of nodes that follow the configuration in force.
    pub(crate) following: Gauge<i64, AtomicI64>,
}

impl ControllerMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "drydock_node_unresponsive",
            "Nodes that were made unschedulable because their agent was unresponsive",
            metrics.became_unresponsive.clone(),
        );
        registry.register(
            "drydock_nodes_unresponsive",
            "Nodes whose agent is unresponsive",
            metrics.unresponsive.clone(),
        );
        registry.register("drydock_nodes", "Nodes with an agent", metrics.nodes.clone());
        registry.register(
            "drydock_nodes_following_configuration",
            "Nodes that follow the HyperConverged in force",
            metrics.following.clone(),
        );
        metrics
    }
}
