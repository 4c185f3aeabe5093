use drydock_api::facts::{ConfidentialFacts, HostModel, KvmFacts, KvmState, SevFacts, TscCounter};
use proptest::prelude::*;

use super::*;
use crate::{minimum_cpu, obsolete};

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|&item| item.into()).collect()
}

fn model(name: &str, usable: Usable) -> CpuModel {
    CpuModel {
        name: name.into(),
        usable,
        ..CpuModel::default()
    }
}

fn node(virtualization: VirtualizationFacts) -> NodeFacts {
    NodeFacts {
        architecture: "amd64".into(),
        virtualization: Some(virtualization),
        ..NodeFacts::default()
    }
}

fn kvm(mut virtualization: VirtualizationFacts) -> NodeFacts {
    virtualization.virt_type = VirtType::Kvm;
    NodeFacts {
        kvm: KvmFacts {
            state: KvmState::Usable,
            hyperv: strings(&["vpindex"]),
            ..KvmFacts::default()
        },
        ..node(virtualization)
    }
}

fn below<'a>(desired: &'a DesiredLabels, prefix: &str) -> BTreeSet<&'a str> {
    desired
        .labels
        .keys()
        .filter_map(|key| key.strip_prefix(prefix))
        .collect()
}

/// The features of Haswell as printed in the HyperConverged documentation.
const HASWELL: [&str; 50] = [
    "aes",
    "apic",
    "avx",
    "avx2",
    "bmi1",
    "bmi2",
    "clflush",
    "cmov",
    "cx16",
    "cx8",
    "de",
    "erms",
    "fma",
    "fpu",
    "fsgsbase",
    "fxsr",
    "hle",
    "invpcid",
    "lahf_lm",
    "lm",
    "mca",
    "mce",
    "mmx",
    "movbe",
    "msr",
    "mtrr",
    "nx",
    "pae",
    "pat",
    "pcid",
    "pclmuldq",
    "pge",
    "pni",
    "popcnt",
    "pse",
    "pse36",
    "rdtscp",
    "rtm",
    "sep",
    "smep",
    "sse",
    "sse2",
    "sse4.1",
    "sse4.2",
    "ssse3",
    "syscall",
    "tsc",
    "tsc-deadline",
    "x2apic",
    "xsave",
];

/// The documentation's worked example. It prints twenty labels and omits `smep`, although its own two lists have it
/// for Haswell and not for Penryn: its rule results in twenty-one.
#[test]
fn the_documented_example_of_penryn_and_haswell() {
    let printed = [
        "aes",
        "avx",
        "avx2",
        "bmi1",
        "bmi2",
        "erms",
        "fma",
        "fsgsbase",
        "hle",
        "invpcid",
        "movbe",
        "pcid",
        "pclmuldq",
        "popcnt",
        "rdtscp",
        "rtm",
        "sse4.2",
        "tsc-deadline",
        "x2apic",
        "xsave",
    ];
    let facts = kvm(VirtualizationFacts {
        features: strings(&HASWELL).into(),
        ..VirtualizationFacts::default()
    });
    let desired = desired(&facts, &LabelPolicy::default());
    let mut expected: BTreeSet<&str> = printed.into();
    assert_eq!(expected.len(), 20);
    expected.insert("smep");
    assert_eq!(below(&desired, keys::CPU_FEATURE), expected);
    assert_eq!(below(&desired, keys::CPU_MINIMUM), BTreeSet::from(["Penryn"]));
}

#[test]
fn models_are_written_by_the_name_that_manifests_use() {
    let alias = |name: &str, canonical: &str, usable| CpuModel {
        canonical: Some(canonical.into()),
        ..model(name, usable)
    };
    let facts = kvm(VirtualizationFacts {
        models: vec![
            alias("Haswell", "Haswell-v1", Usable::Yes),
            model("Haswell-v1", Usable::Yes),
            alias("Skylake", "Skylake-v1", Usable::No),
            model("Skylake-v1", Usable::No),
            model("Mystery", Usable::Unknown),
            alias("qemu64", "qemu64-v1", Usable::Yes),
            model("qemu64-v1", Usable::Yes),
        ]
        .into(),
        host_model: Some(HostModel {
            name: "Skylake".into(),
            ..HostModel::default()
        }),
        ..VirtualizationFacts::default()
    });
    let plain = desired(&facts, &LabelPolicy::default());
    assert_eq!(below(&plain, keys::CPU_MODEL), BTreeSet::from(["Haswell", "Mystery"]));
    assert_eq!(
        below(&plain, keys::CPU_MODEL_MIGRATION),
        BTreeSet::from(["Haswell", "Mystery", "Skylake"])
    );
    assert_eq!(below(&plain, keys::HOST_MODEL), BTreeSet::from(["Skylake"]));
    let all = desired(
        &facts,
        &LabelPolicy {
            aliases: true,
            ..LabelPolicy::default()
        },
    );
    assert_eq!(
        below(&all, keys::CPU_MODEL),
        BTreeSet::from(["Haswell", "Haswell-v1", "Mystery"])
    );
}

#[test]
fn obsolete_host_model_is_flagged_and_no_migration_target() {
    for (name, addition) in [("Conroe", None), ("Conroe-v1", None), ("Haswell", Some("Haswell"))] {
        let facts = kvm(VirtualizationFacts {
            host_model: Some(HostModel {
                name: name.into(),
                ..HostModel::default()
            }),
            ..VirtualizationFacts::default()
        });
        let obsolete = ObsoleteModels::with(addition.map(Into::into));
        let desired = desired(
            &facts,
            &LabelPolicy {
                obsolete,
                ..LabelPolicy::default()
            },
        );
        assert_eq!(below(&desired, keys::HOST_MODEL), BTreeSet::from([name]));
        assert_eq!(
            desired.labels.get(keys::OBSOLETE_HOST_MODEL).map(String::as_str),
            Some("true"),
            "{name}"
        );
        assert_eq!(below(&desired, keys::CPU_MODEL_MIGRATION), BTreeSet::new(), "{name}");
    }
}

#[test]
fn each_architecture_gets_only_applicable_labels() {
    let full = || VirtualizationFacts {
        virt_type: VirtType::Kvm,
        vendor: "IBM".into(),
        host_model: Some(HostModel {
            name: "z15".into(),
            required: strings(&["aen"]),
            ..HostModel::default()
        }),
        models: vec![model("z14", Usable::Yes)].into(),
        features: strings(&["aen", "sse2"]).into(),
        machine_types: vec![
            MachineType {
                name: "virt".into(),
                ..MachineType::default()
            },
            MachineType {
                name: "virt-2.6".into(),
                deprecated: true,
                ..MachineType::default()
            },
            MachineType {
                name: "none".into(),
                ..MachineType::default()
            },
        ]
        .into(),
        tsc: Some(TscCounter {
            frequency_hz: 1,
            scalable: true,
        }),
        ..VirtualizationFacts::default()
    };
    let of = |architecture: &str| {
        let facts = NodeFacts {
            architecture: architecture.into(),
            real_time: true,
            ..kvm(full())
        };
        desired(
            &facts,
            &LabelPolicy {
                guest_architecture: true,
                ..LabelPolicy::default()
            },
        )
    };
    let s390x = of("s390x");
    assert_eq!(
        below(&s390x, keys::CPU_FEATURE),
        BTreeSet::from(["aen", "sse2"]),
        "the minimum is an amd64 model"
    );
    assert_eq!(below(&s390x, keys::CPU_MINIMUM), BTreeSet::new());
    assert_eq!(below(&s390x, keys::CPU_TIMER), BTreeSet::new());
    assert_eq!(below(&s390x, keys::HYPERV), BTreeSet::new());
    assert_eq!(below(&s390x, keys::CPU_VENDOR), BTreeSet::from(["IBM"]));
    assert_eq!(
        of("arm64").labels.into_keys().collect::<Vec<_>>(),
        [
            "kubevirt.io/realtime",
            "kubevirt.io/vm-arch-arm64",
            "machine-type.node.kubevirt.io/virt"
        ]
    );
    let other = of("riscv64");
    assert_eq!(other.withheld, Some(Withheld::Architecture));
    assert_eq!(other.labels.into_keys().collect::<Vec<_>>(), ["kubevirt.io/realtime"]);
}

#[test]
fn emulation_is_labelled_only_where_allowed() {
    let facts = node(VirtualizationFacts {
        features: strings(&["avx2"]).into(),
        ..VirtualizationFacts::default()
    });
    let refused = desired(&facts, &LabelPolicy::default());
    assert_eq!(
        (refused.labels.len(), refused.withheld),
        (0, Some(Withheld::EmulationNotAllowed))
    );
    let allowed = desired(
        &facts,
        &LabelPolicy {
            use_emulation: true,
            ..LabelPolicy::default()
        },
    );
    assert_eq!((allowed.labels.len(), allowed.withheld), (1, None));
}

#[test]
fn confidential_computing_and_timer_labels_follow_the_facts() {
    let sev = |max_es_guests| {
        Some(SevFacts {
            max_es_guests,
            ..SevFacts::default()
        })
    };
    for (facts, expected) in [
        (ConfidentialFacts::default(), &[][..]),
        (
            ConfidentialFacts {
                sev: sev(0),
                sev_snp: true,
                ..ConfidentialFacts::default()
            },
            &[keys::SEV],
        ),
        (
            ConfidentialFacts {
                sev: sev(1),
                ..ConfidentialFacts::default()
            },
            &[keys::SEV, keys::SEV_ES],
        ),
        (
            ConfidentialFacts {
                sev: sev(1),
                sev_snp: true,
                ..ConfidentialFacts::default()
            },
            &[keys::SEV, keys::SEV_ES, keys::SEV_SNP],
        ),
        (
            ConfidentialFacts {
                tdx: true,
                secure_execution: true,
                ..ConfidentialFacts::default()
            },
            &[keys::SECURE_EXECUTION, keys::TDX],
        ),
    ] {
        let desired = desired(
            &kvm(VirtualizationFacts {
                confidential: facts.clone(),
                ..VirtualizationFacts::default()
            }),
            &LabelPolicy::default(),
        );
        let found: Vec<&str> = desired
            .labels
            .keys()
            .map(String::as_str)
            .filter(|key| key.starts_with("kubevirt.io/"))
            .collect();
        assert_eq!(found, expected, "{facts:?}");
    }
    let facts = kvm(VirtualizationFacts {
        tsc: Some(TscCounter {
            frequency_hz: 2_600_000_000,
            scalable: false,
        }),
        ..VirtualizationFacts::default()
    });
    let desired = desired(&facts, &LabelPolicy::default());
    assert_eq!(desired.labels[keys::TSC_FREQUENCY], "2600000000");
    assert_eq!(desired.labels[keys::TSC_SCALABLE], "false");
    assert_eq!(below(&desired, keys::HYPERV), BTreeSet::from(["vpindex"]));
}

#[test]
fn keys_that_kubernetes_refuses_are_left_out_and_named() {
    let facts = kvm(VirtualizationFacts {
        features: strings(&["good", "", "bad name", &"x".repeat(64)]).into(),
        host_model: Some(HostModel::default()),
        ..VirtualizationFacts::default()
    });
    let desired = desired(&facts, &LabelPolicy::default());
    assert_eq!(below(&desired, keys::CPU_FEATURE), BTreeSet::from(["good"]));
    assert_eq!(desired.invalid.len(), 5, "{:?}", desired.invalid);
}

#[test]
fn only_owned_keys_change() {
    let current = BTreeMap::from(
        [
            ("cpu-model.node.kubevirt.io/old", "true"),
            ("cpu-model.node.kubevirt.io/kept", "true"),
            ("cpu-vendor.node.kubevirt.io/Forged", "true"),
            ("kubevirt.io/tdx", "true"),
            ("kubevirt.io/tdx-like", "true"),
            ("kubernetes.io/hostname", "a"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let desired = BTreeMap::from([("cpu-model.node.kubevirt.io/kept".to_owned(), "true".to_owned())]);
    let changes = changes(&current, &desired, keys::is_owned);
    assert_eq!(
        changes.keys().map(String::as_str).collect::<Vec<_>>(),
        [
            "cpu-model.node.kubevirt.io/old",
            "cpu-vendor.node.kubevirt.io/Forged",
            "kubevirt.io/tdx"
        ]
    );
    assert!(changes.values().all(Option::is_none));
}

prop_compose! {
    fn any_model()(
        name in prop_oneof![
            prop::sample::select(&obsolete::BUILT_IN[..]).prop_map(str::to_owned),
            "[A-Za-z0-9_.-]{0,12}(-v[0-9])?",
            Just("Haswell".to_owned()),
        ],
        usable in prop_oneof![Just(Usable::Yes), Just(Usable::No), Just(Usable::Unknown)],
        canonical in prop::option::of("[A-Za-z0-9]{1,8}-v1"),
    ) -> CpuModel {
        CpuModel { name, usable, canonical, ..CpuModel::default() }
    }
}

prop_compose! {
    fn any_facts()(
        architecture in prop::sample::select(&["amd64", "amd64", "arm64", "s390x", "riscv64"][..]),
        virt_type in prop_oneof![Just(VirtType::Kvm), Just(VirtType::Qemu)],
        present in prop::bool::weighted(0.9),
        models in prop::collection::vec(any_model(), 0..20),
        features in prop::collection::vec(
            prop_oneof![prop::sample::select(&minimum_cpu::PENRYN[..]).prop_map(str::to_owned), ".{0,70}", "[a-z0-9.-]{1,9}"],
            0..60,
        ),
        host_model in prop::option::of(any_model()),
        vendor in "[A-Za-z ]{0,8}",
        real_time: bool,
    ) -> NodeFacts {
        NodeFacts {
            architecture: architecture.into(),
            real_time,
            virtualization: present.then(|| VirtualizationFacts {
                virt_type,
                host_model: host_model.map(|model| HostModel {
                    name: model.name,
                    required: features.iter().take(20).cloned().collect(),
                    ..HostModel::default()
                }),
                models: models.into(),
                features: features.into(),
                vendor,
                ..VirtualizationFacts::default()
            }),
            ..NodeFacts::default()
        }
    }
}

prop_compose! {
    fn any_policy()(
        additions in prop::collection::vec("[A-Za-z0-9]{1,8}", 0..4),
        minimum in prop_oneof![
            Just(Minimum::default()),
            prop::collection::btree_set("[a-z0-9]{1,4}", 1..9)
                .prop_map(|features| Minimum { model: "Custom".into(), features }),
        ],
        aliases: bool,
        use_emulation: bool,
        guest_architecture: bool,
    ) -> LabelPolicy {
        LabelPolicy {
            obsolete: ObsoleteModels::with(additions),
            minimum,
            aliases,
            use_emulation,
            guest_architecture,
        }
    }
}

fn any_current() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = prop_oneof![
        (prop::sample::select(&keys::OWNED_PREFIXES[..]), "[a-zA-Z0-9]{1,6}")
            .prop_map(|(prefix, name)| format!("{prefix}{name}")),
        prop::sample::select(&keys::OWNED_KEYS[..]).prop_map(str::to_owned),
        "[a-z.]{1,9}/[a-z]{1,5}",
        Just("kubevirt.io/schedulable".to_owned()),
    ];
    prop::collection::btree_map(key, "[a-z]{0,4}", 0..30)
}

proptest! {
    #[test]
    fn no_obsolete_model_and_no_minimum_feature_is_ever_labelled(facts in any_facts(), policy in any_policy()) {
        let desired = desired(&facts, &policy);
        for prefix in [keys::CPU_MODEL, keys::CPU_MODEL_MIGRATION] {
            for name in below(&desired, prefix) {
                prop_assert!(!policy.obsolete.lists(name), "{prefix}{name}");
            }
        }
        if facts.architecture == "amd64" {
            for prefix in [keys::CPU_FEATURE, keys::HOST_MODEL_REQUIRED_FEATURE] {
                for name in below(&desired, prefix) {
                    prop_assert!(!policy.minimum.features.contains(name), "{prefix}{name}");
                }
            }
        }
    }

    #[test]
    fn every_key_is_owned_and_valid(facts in any_facts(), policy in any_policy()) {
        for key in desired(&facts, &policy).labels.keys() {
            prop_assert!(keys::is_owned(key) && label_keys::is_valid(key), "{key}");
        }
    }

    #[test]
    fn applied_changes_reach_the_goal_and_leave_other_labels(
        facts in any_facts(), policy in any_policy(), before in any_current(),
    ) {
        let desired = desired(&facts, &policy).labels;
        let mut after = before.clone();
        for (key, value) in changes(&before, &desired, keys::is_owned) {
            match value {
                Some(value) => after.insert(key, value),
                None => after.remove(&key),
            };
        }
        prop_assert!(changes(&after, &desired, keys::is_owned).is_empty());
        let foreign = |labels: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            labels.iter().filter(|(key, _)| !keys::is_owned(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        prop_assert_eq!(foreign(&before), foreign(&after));
    }
}
