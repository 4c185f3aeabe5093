//! Parses a HyperConverged. The schema has checked types and patterns; this module checks what the schema cannot
//! express.

use std::time::Duration;

use drydock_api::hyperconverged::{CertLifetime, HyperConvergedSpec, LiveMigrationConfig};

use super::{Certificates, Configuration, LONGEST_DOWNTIME_MS, Lifetime, Parsed};
use crate::{go_duration, quantity};

/// Name of the kind.
pub const KIND: &str = "HyperConverged";

/// Parses the spec of a HyperConverged.
pub fn parse(spec: &HyperConvergedSpec) -> Parsed {
    let mut parsed = Parsed::default();
    if let Some(cpus) = &spec.obsolete_cpus {
        parsed.layer.obsolete_cpu_models = cpus.cpu_models.iter().cloned().collect();
        parsed.layer.min_cpu_model = cpus.min_cpu_model.clone();
    }
    if let Some(migrations) = &spec.live_migration_config {
        live_migration(&mut parsed, migrations, "spec.liveMigrationConfig");
    }
    parsed.layer.eviction_strategy = spec.eviction_strategy;
    parsed.layer.default_cpu_model = spec.default_cpu_model.clone();
    parsed.layer.feature_gates = spec.feature_gates.clone().unwrap_or_default();
    if let Some(certificates) = &spec.cert_config {
        let Certificates { ca, server } = Configuration::default().certificates;
        parsed.layer.ca = certificates
            .ca
            .as_ref()
            .and_then(|c| lifetime(&mut parsed, c, ca, "spec.certConfig.ca"));
        parsed.layer.server = certificates
            .server
            .as_ref()
            .and_then(|c| lifetime(&mut parsed, c, server, "spec.certConfig.server"));
    }
    parsed
}

/// Reads migration settings into the layer; `path` is their path in the object.
pub(super) fn live_migration(parsed: &mut Parsed, from: &LiveMigrationConfig, path: &str) {
    let mut number = |field: &str, value: Option<u32>| {
        let allowed = value.filter(|value| (1..=10_000).contains(value));
        if let Some(value) = value
            && allowed.is_none()
        {
            parsed.refuse(format!("{path}.{field}"), value.to_string(), "1 to 10000");
        }
        allowed
    };
    let per_cluster = number("parallelMigrationsPerCluster", from.parallel_migrations_per_cluster);
    let outbound_per_node = number(
        "parallelOutboundMigrationsPerNode",
        from.parallel_outbound_migrations_per_node,
    );
    let inbound_per_node = number(
        "parallelInboundMigrationsPerNode",
        from.parallel_inbound_migrations_per_node,
    );
    parsed.layer.per_cluster = per_cluster;
    parsed.layer.outbound_per_node = outbound_per_node;
    parsed.layer.inbound_per_node = inbound_per_node;
    if let Some(text) = &from.bandwidth_per_migration {
        match quantity::bytes(text) {
            Some(bytes) => parsed.layer.bandwidth = Some(bytes),
            None => parsed.refuse(
                format!("{path}.bandwidthPerMigration"),
                text,
                "a quantity of bytes per second such as 64Mi; 0 for no limit",
            ),
        }
    }
    parsed.layer.completion_timeout_per_gib = from.completion_timeout_per_gi_b;
    parsed.layer.progress_timeout = from.progress_timeout;
    let allowed = 1..=LONGEST_DOWNTIME_MS;
    match from.max_downtime_ms {
        Some(value) if !allowed.contains(&value.into()) => parsed.refuse(
            format!("{path}.maxDowntimeMs"),
            value.to_string(),
            format!("milliseconds from 1 to {LONGEST_DOWNTIME_MS}"),
        ),
        value => parsed.layer.max_downtime_ms = value,
    }
    parsed.layer.auto_converge = from.allow_auto_converge;
    parsed.layer.post_copy = from.allow_post_copy;
    parsed.layer.workload_disruption = from.allow_workload_disruption;
    if let Some(key) = &from.node_drain_taint_key {
        if crate::label_keys::is_valid(key) {
            parsed.layer.drain_taint_key = Some(key.clone());
        } else {
            parsed.refuse(
                format!("{path}.nodeDrainTaintKey"),
                key,
                "a taint key such as kubevirt.io/drain",
            );
        }
    }
}

fn lifetime(parsed: &mut Parsed, from: &CertLifetime, default: Lifetime, path: &str) -> Option<Lifetime> {
    let mut read = |text: &Option<String>, otherwise: Duration, field: &str| match text {
        None => Some(otherwise),
        Some(text) => {
            let duration = at_least_a_second(text);
            if duration.is_none() {
                parsed.refuse(
                    format!("{path}.{field}"),
                    text,
                    "a duration of at least a second such as 48h0m0s",
                );
            }
            duration
        }
    };
    let duration = read(&from.duration, default.duration, "duration");
    let renew_before = read(
        &from.renew_before,
        duration.unwrap_or(default.duration) / 2,
        "renewBefore",
    );
    let lifetime = Lifetime {
        duration: duration?,
        renew_before: renew_before?,
    };
    if lifetime.renew_before < lifetime.duration {
        return Some(lifetime);
    }
    parsed.refuse(
        format!("{path}.renewBefore"),
        from.renew_before.clone().unwrap_or_default(),
        format!("less than the duration, {} s", lifetime.duration.as_secs()),
    );
    None
}

/// Parses a Go duration of at least a second.
fn at_least_a_second(text: &str) -> Option<Duration> {
    go_duration::parse(text).filter(|duration| *duration >= Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        for (text, expected) in [
            ("48h0m0s", Some(48 * 3600)),
            ("24h", Some(24 * 3600)),
            ("1h30m", Some(5400)),
            ("10s", Some(10)),
            ("0s", None),
            ("500ms", None),
            ("-1h", None),
            ("", None),
            ("h", None),
            ("48", None),
        ] {
            assert_eq!(at_least_a_second(text).map(|d| d.as_secs()), expected, "{text:?}");
        }
    }
}
