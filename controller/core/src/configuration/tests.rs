use drydock_api::hyperconverged::{
    CertConfig, CertLifetime, EvictionStrategy, HyperConvergedSpec, LiveMigrationConfig, ObsoleteCpus,
};
use proptest::prelude::*;

use super::*;

fn config_map(pairs: &[(&str, &str)]) -> Parsed {
    legacy::parse(
        &pairs
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect(),
    )
}

fn source(kind: &'static str, parsed: Parsed) -> ConfigurationSource {
    ConfigurationSource {
        kind,
        reference: Reference::default(),
        parsed,
    }
}

fn minimum(model: &str) -> Parsed {
    hyperconverged::parse(&HyperConvergedSpec {
        obsolete_cpus: Some(ObsoleteCpus {
            min_cpu_model: Some(model.into()),
            cpu_models: vec![],
        }),
        ..HyperConvergedSpec::default()
    })
}

#[test]
fn nothing_configured_gives_the_documented_defaults() {
    let all = merge([]);
    assert_eq!(all.min_cpu_model, "Penryn");
    assert_eq!(
        (
            all.migrations.per_cluster,
            all.migrations.outbound_per_node,
            all.migrations.inbound_per_node
        ),
        (5, 2, 2)
    );
    assert_eq!(all.migrations.drain_taint_key, "kubevirt.io/drain");
    assert!(!all.use_emulation);
}

#[test]
fn documented_hyper_converged_has_the_built_in_values() {
    let page = include_str!("../../../../deploy/docs/configuration.md");
    let (_, block) = page.split_once("```yaml\n").unwrap();
    let (text, _) = block.split_once("```").unwrap();
    let object: drydock_api::HyperConverged = serde_saphyr::from_str(text).unwrap();
    assert!(object.spec.other.is_empty(), "{:?}", object.spec.other);
    let parsed = hyperconverged::parse(&object.spec);
    assert_eq!(parsed.problems, []);
    let layer = &parsed.layer;
    assert!(layer.eviction_strategy.is_some() && layer.min_cpu_model.is_some() && layer.ca.is_some());
    assert!(layer.server.is_some() && layer.drain_taint_key.is_some() && layer.workload_disruption.is_some());
    assert_eq!(merge([layer]), Configuration::default());
}

#[test]
fn the_config_map_of_the_drain_documentation_is_read() {
    let parsed = config_map(&[
        ("feature-gates", "LiveMigration"),
        ("migrations", "nodeDrainTaintKey: mytaint/drain"),
    ]);
    assert_eq!(parsed.problems, []);
    let all = merge([&parsed.layer]);
    assert_eq!(all.migrations.drain_taint_key, "mytaint/drain");
    assert!(all.gate("LiveMigration"));
}

#[test]
fn fields_override_the_layer_below_obsolete_models_add_up() {
    let lower = config_map(&[
        ("obsolete-cpu-models", "Haswell, Broadwell"),
        ("min-cpu-model", "Westmere"),
        ("debug.useEmulation", "true"),
        (
            "migrations",
            "parallelMigrationsPerCluster: 7\nbandwidthPerMigration: 64Mi\nprogressTimeout: \"0\"\nmaxDowntimeMs: 500",
        ),
    ]);
    let upper = hyperconverged::parse(&HyperConvergedSpec {
        obsolete_cpus: Some(ObsoleteCpus {
            cpu_models: vec!["Nehalem".into()],
            min_cpu_model: None,
        }),
        live_migration_config: Some(LiveMigrationConfig {
            parallel_migrations_per_cluster: Some(9),
            allow_post_copy: Some(true),
            ..LiveMigrationConfig::default()
        }),
        ..HyperConvergedSpec::default()
    });
    assert_eq!((&lower.problems, &upper.problems), (&vec![], &vec![]));
    let all = merge([&lower.layer, &upper.layer]);
    assert_eq!(
        all.obsolete_cpu_models,
        ["Broadwell", "Haswell", "Nehalem"].map(str::to_owned).into()
    );
    assert_eq!(all.min_cpu_model, "Westmere");
    assert!(all.use_emulation);
    assert_eq!(all.migrations.per_cluster, 9);
    assert_eq!(all.migrations.bandwidth, Some(64 << 20));
    assert_eq!(all.migrations.progress_timeout, None);
    assert_eq!(all.migrations.max_downtime.as_millis(), 500);
    assert_eq!(merge([]).migrations.max_downtime.as_millis(), 900);
    assert!(all.migrations.post_copy && all.migrations.workload_disruption);
}

#[test]
fn invalid_values_are_named_with_field_and_allowed_values() {
    let parsed = config_map(&[
        ("obsolete-cpu-models", "Haswell,not a model"),
        ("min-cpu-model", "two models"),
        ("debug.useEmulation", "maybe"),
        (
            "migrations",
            "parallelMigrationsPerCluster: many\nparallelOutboundMigrationsPerNode: 0\nbandwidthPerMigration: fast\nmaxDowntimeMs: 2000001\nallowPostCopy: perhaps\nnodeDrainTaintKey: a b",
        ),
    ]);
    let text: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(text.join("\n"), @r"
    data.obsolete-cpu-models: `not a model` is not allowed; allowed: CPU models separated by commas or line breaks
    data.min-cpu-model: `two models` is not allowed; allowed: one CPU model, for example Penryn
    data.debug.useEmulation: `maybe` is not allowed; allowed: true or false
    data.migrations.parallelMigrationsPerCluster: `many` is not allowed; allowed: a whole number of at least 0
    data.migrations.allowPostCopy: `perhaps` is not allowed; allowed: true or false
    data.migrations.parallelOutboundMigrationsPerNode: `0` is not allowed; allowed: 1 to 10000
    data.migrations.bandwidthPerMigration: `fast` is not allowed; allowed: a quantity of bytes per second such as 64Mi; 0 for no limit
    data.migrations.maxDowntimeMs: `2000001` is not allowed; allowed: milliseconds from 1 to 2000000
    data.migrations.nodeDrainTaintKey: `a b` is not allowed; allowed: a taint key such as kubevirt.io/drain
    ");
}

#[test]
fn certificate_renewal_must_precede_the_expiry() {
    let with = |duration: &str, renew_before: &str| {
        hyperconverged::parse(&HyperConvergedSpec {
            cert_config: Some(CertConfig {
                ca: Some(CertLifetime {
                    duration: Some(duration.into()),
                    renew_before: Some(renew_before.into()),
                }),
                server: None,
            }),
            ..HyperConvergedSpec::default()
        })
    };
    assert_eq!(with("48h0m0s", "24h0m0s").problems, []);
    assert_eq!(with("24h", "24h").problems[0].field, "spec.certConfig.ca.renewBefore");
    assert_eq!(with("x", "24h").problems[0].field, "spec.certConfig.ca.duration");
}

#[test]
fn a_refused_object_leaves_the_last_good_configuration_in_force() {
    let good = Configuration {
        min_cpu_model: "Westmere".into(),
        ..Configuration::default()
    };
    let known = |model: &str| Some(model != "Pendryn");
    let fine = resolve(
        vec![source(hyperconverged::KIND, minimum("Haswell"))],
        known,
        Some(&good),
    );
    assert!(!fine.refused());
    assert_eq!(fine.configuration.min_cpu_model, "Haswell");
    let refused = resolve(
        vec![source(hyperconverged::KIND, minimum("Pendryn"))],
        known,
        Some(&good),
    );
    assert!(refused.refused());
    assert_eq!(refused.configuration, good);
    assert_eq!(
        refused.sources[0].parsed.problems[0].field,
        "spec.obsoleteCPUs.minCPUModel"
    );
    let never_good = resolve(vec![source(hyperconverged::KIND, minimum("Pendryn"))], known, None);
    assert_eq!(never_good.configuration, Configuration::default());
    let undecided = resolve(
        vec![source(hyperconverged::KIND, minimum("Pendryn"))],
        |_| None,
        Some(&good),
    );
    assert_eq!(undecided.configuration.min_cpu_model, "Pendryn");
}

#[test]
fn valid_values_of_a_refused_object_apply_if_none_was_good() {
    let spec = HyperConvergedSpec {
        eviction_strategy: Some(EvictionStrategy::LiveMigrate),
        live_migration_config: Some(LiveMigrationConfig {
            parallel_migrations_per_cluster: Some(0),
            parallel_outbound_migrations_per_node: Some(7),
            node_drain_taint_key: Some("my drain".into()),
            ..LiveMigrationConfig::default()
        }),
        cert_config: Some(CertConfig {
            ca: None,
            server: Some(CertLifetime {
                duration: Some("12h".into()),
                renew_before: Some("12h".into()),
            }),
        }),
        ..HyperConvergedSpec::default()
    };
    let resolution = resolve(
        vec![source(hyperconverged::KIND, hyperconverged::parse(&spec))],
        |_| None,
        None,
    );
    assert_eq!(resolution.sources[0].parsed.problems.len(), 3);
    let built_in = Configuration::default();
    let expected = Configuration {
        eviction_strategy: EvictionStrategy::LiveMigrate,
        migrations: MigrationSettings {
            outbound_per_node: 7,
            ..built_in.migrations
        },
        ..built_in
    };
    assert_eq!(resolution.configuration, expected);
    let cases = [("min-cpu-model", "two models"), ("obsolete-cpu-models", "not a model")];
    for (key, value) in cases {
        let parsed = config_map(&[(key, value), ("debug.useEmulation", "true")]);
        let resolution = resolve(vec![source(legacy::KIND, parsed)], |_| None, None);
        assert!(resolution.refused() && resolution.configuration.use_emulation, "{key}");
    }
}

#[test]
fn two_nodes_follow_at_once_and_a_thousand_within_seconds() {
    let most = Duration::from_secs(5);
    assert_eq!(spread(2, most, 1.0), Duration::from_millis(10));
    assert_eq!(spread(1000, most, 1.0), Duration::from_secs(5));
    assert_eq!(spread(100_000, most, 0.5), Duration::from_millis(2500));
    assert_eq!(spread(1000, Duration::ZERO, 1.0), Duration::ZERO);
}

proptest! {
    #[test]
    fn no_config_map_makes_the_parser_fail(
        data in prop::collection::btree_map(
            prop_oneof![
                Just("migrations".to_owned()), Just("feature-gates".to_owned()), Just("min-cpu-model".to_owned()),
                Just("obsolete-cpu-models".to_owned()), Just("debug.useEmulation".to_owned()),
            ],
            prop_oneof![".{0,200}", "([a-zA-Z]{1,9}: ?[\\[{&*!|>'\"]?.{0,9}\n){0,9}"],
            0..5,
        ),
    ) {
        let parsed = legacy::parse(&data);
        let bytes: usize = data.values().map(String::len).sum();
        prop_assert!(parsed.problems.iter().map(|p| p.value.len()).sum::<usize>() <= bytes * 4 + 400);
        for model in &parsed.layer.obsolete_cpu_models {
            prop_assert!(crate::label_keys::is_valid(model));
        }
    }
}
