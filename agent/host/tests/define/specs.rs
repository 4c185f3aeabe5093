//! Random specs with fields that Drydock supports, and their related data.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::{
        Amount, VirtualMachineInstanceSpec,
        devices::{
            Binding, CdRomTarget, Devices, Disk, DiskBus, DiskCache, DiskTarget, I6300Esb, Input, InputBus, Interface,
            InterfaceModel, Port, Protocol, Rng, Sound, SoundModel, Watchdog, WatchdogAction,
        },
        domain_spec::{
            Bootloader, Clock, ClockUtc, Cpu, CpuFeature, Domain, Efi, FeaturePolicy, Firmware, Machine, Memory,
            Resources, TickPolicy, Timer, Timers, Track,
        },
        features::{FeatureHyperv, FeatureKvm, FeatureSpinlocks, FeatureState, FeatureVendorId, Features, SyNicTimer},
        volumes::{ContainerDisk, EmptyDisk, Volume},
    },
    launcher::{BackingImage, DEVICES_FOLDER, DISKS_FOLDER, DiskFormat, IMAGES_FOLDER, PreparedDisk, VOLUMES_FOLDER},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaimVolumeSource;
use proptest::{option, prelude::*, sample::select};

/// A spec, the disks that a launcher has prepared for the spec, and the CPU features masked on its node.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) spec: VirtualMachineInstanceSpec,
    pub(crate) disks: Vec<PreparedDisk>,
    pub(crate) masked: BTreeSet<String>,
    pub(crate) features: Option<BTreeSet<String>>,
}

/// CPU features that a spec may request. [`MASKED`] has the other features that a node may mask.
const FEATURES: [&str; 4] = ["aes", "avx", "pcid", "x2apic"];
const MASKED: [&str; 3] = ["avx2", "hle", "sse4.2"];

/// Generates cases that are never refused.
pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let masked = prop::collection::btree_set(select(&MASKED).prop_map(str::to_owned), 0..3);
    let features = option::of(prop::collection::btree_set(
        select(&MASKED).prop_map(str::to_owned),
        0..3,
    ));
    (domain(), prop::collection::vec(disk(), 0..9), masked, features).prop_map(
        |(mut domain, disks, masked, features)| {
            let mut spec = VirtualMachineInstanceSpec::default();
            let mut prepared = Vec::new();
            for (index, (mut disk, volume)) in disks.into_iter().enumerate() {
                disk.name = format!("disk-{index}");
                // Boot orders must be unique.
                disk.boot_order = disk.boot_order.map(|place| place + 100 * u32::try_from(index).unwrap());
                prepared.push(volume.prepared(&disk.name));
                spec.volumes.push(volume.volume(&disk.name));
                // A volume that is not mentioned in the spec's disks is attached too.
                if disk.serial.as_deref() != Some("implied") {
                    domain.devices.disks.push(disk);
                }
            }
            spec.domain = domain;
            Case {
                spec,
                disks: prepared,
                masked,
                features,
            }
        },
    )
}

fn domain() -> impl Strategy<Value = Domain> {
    let machine = option::of(option::of(select(&["q35", "pc-q35-6.2"][..])));
    let efi = option::of(any::<Option<bool>>().prop_map(|secure_boot| Efi { secure_boot }));
    let firmware = option::of((option::of(any::<u128>()), option::of("[!-~]([ -~]{0,20}[!-~])?"), efi));
    (
        memory(),
        option::of(cpu()),
        machine,
        firmware,
        option::of(clock()),
        devices(),
        option::of(features()),
    )
        .prop_map(
            |((memory, resources), cpu, machine, firmware, clock, devices, features)| Domain {
                cpu,
                memory,
                resources,
                machine: machine.map(|type_| Machine {
                    type_: type_.map(str::to_owned),
                }),
                firmware: firmware.map(|(uuid, serial, efi)| Firmware {
                    uuid: uuid.map(text_of_uuid),
                    serial,
                    bootloader: efi.map(|efi| Bootloader {
                        efi: Some(efi),
                        bios: None,
                    }),
                }),
                features,
                clock,
                devices,
            },
        )
}

fn features() -> BoxedStrategy<Features> {
    let state = || option::of(any::<Option<bool>>().prop_map(|enabled| FeatureState { enabled }));
    let hidden = option::of(any::<Option<bool>>().prop_map(|hidden| FeatureKvm { hidden }));
    (state(), hidden, state(), option::of(hyperv()))
        .prop_map(|(smm, kvm, pvspinlock, hyperv)| Features {
            smm,
            kvm,
            pvspinlock,
            hyperv,
        })
        .boxed()
}

fn hyperv() -> BoxedStrategy<FeatureHyperv> {
    let state = || option::of(any::<Option<bool>>().prop_map(|enabled| FeatureState { enabled }));
    let spinlocks = option::of((any::<Option<bool>>(), option::of(4095_u32..100_000)));
    let timers = option::of((any::<Option<bool>>(), state()));
    let vendor = option::of((any::<Option<bool>>(), "[!-+.-~]{1,12}"));
    let first = (state(), state(), state(), state(), state());
    let second = (state(), state(), state(), state());
    (first, second, spinlocks, timers, vendor)
        .prop_map(|(first, second, spinlocks, timers, vendor)| {
            let (relaxed, vapic, vpindex, runtime, synic) = first;
            let (reset, frequencies, tlbflush, ipi) = second;
            FeatureHyperv {
                relaxed,
                vapic,
                spinlocks: spinlocks.map(|(enabled, spinlocks)| FeatureSpinlocks { enabled, spinlocks }),
                vpindex,
                runtime,
                synic,
                synictimer: timers.map(|(enabled, direct)| SyNicTimer { enabled, direct }),
                reset,
                vendorid: vendor.map(|(enabled, vendorid)| FeatureVendorId {
                    enabled,
                    vendorid: Some(vendorid),
                }),
                frequencies,
                tlbflush,
                ipi,
            }
        })
        .boxed()
}

fn text_of_uuid(number: u128) -> String {
    let hex = format!("{number:032X}");
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// Generates the guest's memory, set directly or by the request or limit of memory, and CPUs for specs without a
/// topology.
fn memory() -> impl Strategy<Value = (Option<Memory>, Option<Resources>)> {
    let amount = (1_u64 << 20..1 << 34).prop_map(|bytes| Amount(bytes.to_string()));
    let cpus = option::of((1_u32..9000).prop_map(|millis| Amount(format!("{millis}m"))));
    (amount, cpus, 0..3).prop_map(|(amount, cpus, place)| {
        let mut resources = Resources::default();
        resources.limits.extend(cpus.map(|cpus| ("cpu".to_owned(), cpus)));
        let mut memory = None;
        match place {
            0 => memory = Some(Memory { guest: Some(amount) }),
            1 => drop(resources.requests.insert("memory".into(), amount)),
            _ => drop(resources.limits.insert("memory".into(), amount)),
        }
        (memory, Some(resources))
    })
}

fn cpu() -> impl Strategy<Value = Cpu> {
    let policy = select(vec![
        FeaturePolicy::Force,
        FeaturePolicy::Require,
        FeaturePolicy::Optional,
        FeaturePolicy::Disable,
        FeaturePolicy::Forbid,
    ]);
    let features = prop::collection::btree_map(select(&FEATURES[..]), option::of(policy), 0..4);
    let model = option::of(select(
        &["host-model", "host-passthrough", "Penryn", "Haswell-noTSX", "qemu64"][..],
    ));
    let part = || option::of(1_u32..5);
    (part(), part(), part(), model, features).prop_map(|(sockets, cores, threads, model, features)| Cpu {
        sockets,
        cores,
        threads,
        model: model.map(str::to_owned),
        features: features
            .into_iter()
            .map(|(name, policy)| CpuFeature {
                name: name.into(),
                policy,
            })
            .collect(),
    })
}

fn clock() -> impl Strategy<Value = Clock> {
    let offset = option::of(-100_000_i64..100_000);
    let place = prop_oneof![
        Just((None, None)),
        offset.prop_map(|offset_seconds| (Some(ClockUtc { offset_seconds }), None)),
        select(&["Europe/Rome", "Etc/GMT+3", "UTC"][..]).prop_map(|zone| (None, Some(zone.to_owned()))),
    ];
    (place, option::of(timers())).prop_map(|((utc, timezone), timer)| Clock { utc, timezone, timer })
}

fn timers() -> impl Strategy<Value = Timers> {
    let timer = |policies: Vec<TickPolicy>, tracks: bool| {
        let policy = select(policies.iter().copied().map(Some).chain([None]).collect::<Vec<_>>());
        let track = if tracks {
            vec![None, Some(Track::Guest), Some(Track::Wall)]
        } else {
            vec![None]
        };
        option::of(
            (any::<Option<bool>>(), policy, select(track)).prop_map(|(present, tick_policy, track)| Timer {
                present,
                tick_policy,
                track,
            }),
        )
    };
    let all = vec![
        TickPolicy::Delay,
        TickPolicy::Catchup,
        TickPolicy::Merge,
        TickPolicy::Discard,
    ];
    let pit = vec![TickPolicy::Delay, TickPolicy::Catchup, TickPolicy::Discard];
    let rtc = vec![TickPolicy::Delay, TickPolicy::Catchup];
    (
        timer(all, false),
        timer(vec![], false),
        timer(pit, false),
        timer(rtc, true),
        timer(vec![], false),
    )
        .prop_map(|(hpet, kvm, pit, rtc, hyperv)| Timers {
            hpet,
            kvm,
            pit,
            rtc,
            hyperv,
        })
}

fn devices() -> impl Strategy<Value = Devices> {
    let yes = any::<Option<bool>>;
    let interfaces = prop::collection::vec(interface(), 0..3);
    let of_spec = (interfaces, any::<bool>(), yes(), yes(), yes());
    (of_spec, (inputs(), yes(), yes()), (watchdog(), sound())).prop_map(|(of_spec, inputs, (watchdog, sound))| {
        let (mut interfaces, rng, serial, graphics, pod) = of_spec;
        let (inputs, autoattach_input_device, autoattach_mem_balloon) = inputs;
        for (interface, index) in interfaces.iter_mut().zip(1..) {
            interface.name = format!("net-{index}");
            interface.boot_order = interface.boot_order.map(|place| place + 10_000 * index);
        }
        Devices {
            disks: Vec::new(),
            interfaces,
            rng: rng.then(Rng::default),
            autoattach_serial_console: serial,
            autoattach_graphics_device: graphics,
            autoattach_pod_interface: pod,
            autoattach_input_device,
            autoattach_mem_balloon,
            inputs,
            watchdog,
            sound,
        }
    })
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let bus = select(vec![None, Some(InputBus::Usb), Some(InputBus::Virtio)]);
    prop::collection::vec(bus, 0..4).prop_map(|buses| {
        let input = |(index, bus): (usize, Option<InputBus>)| Input {
            name: format!("input-{index}"),
            bus,
            ..Input::default()
        };
        buses.into_iter().enumerate().map(input).collect()
    })
}

fn watchdog() -> impl Strategy<Value = Option<Watchdog>> {
    let action = select(vec![
        None,
        Some(WatchdogAction::Poweroff),
        Some(WatchdogAction::Reset),
        Some(WatchdogAction::Shutdown),
    ]);
    option::of(action.prop_map(|action| Watchdog {
        name: "watchdog".into(),
        i6300esb: Some(I6300Esb { action }),
    }))
}

fn sound() -> impl Strategy<Value = Option<Sound>> {
    let model = select(vec![None, Some(SoundModel::Ich9), Some(SoundModel::Ac97)]);
    option::of(model.prop_map(|model| Sound {
        name: "sound".into(),
        model,
    }))
}

fn interface() -> impl Strategy<Value = Interface> {
    let model = select(vec![
        None,
        Some(InterfaceModel::Virtio),
        Some(InterfaceModel::E1000e),
        Some(InterfaceModel::E1000),
    ]);
    let protocol = select(vec![None, Some(Protocol::Tcp), Some(Protocol::Udp)]);
    let port = (protocol, 1..65536).prop_map(|(protocol, port)| Port {
        name: None,
        protocol,
        port,
    });
    let mac = option::of(prop_oneof!["02(:[0-9a-f]{2}){5}", "DE(-[0-9A-F]{2}){5}"]);
    let place = option::of(1_u32..1000);
    (model, prop::collection::vec(port, 0..5), mac, place).prop_map(|(model, ports, mac_address, boot_order)| {
        Interface {
            masquerade: Some(Binding::default()),
            model,
            ports,
            mac_address,
            boot_order,
            ..Interface::default()
        }
    })
}

/// The content of a volume.
#[derive(Clone, Copy, Debug)]
enum Content {
    Image,
    Empty,
    File,
    Block,
}

impl Content {
    fn volume(self, name: &str) -> Volume {
        let mut volume = Volume {
            name: name.into(),
            ..Volume::default()
        };
        match self {
            Self::Image => volume.container_disk = Some(ContainerDisk::default()),
            Self::Empty => volume.empty_disk = Some(EmptyDisk::default()),
            Self::File | Self::Block => {
                volume.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource::default());
            }
        }
        volume
    }

    fn prepared(self, name: &str) -> PreparedDisk {
        let image = matches!(self, Self::Image);
        PreparedDisk {
            name: name.into(),
            path: match self {
                Self::Image => format!("{DISKS_FOLDER}/{name}.qcow2"),
                Self::Empty => format!("{DISKS_FOLDER}/{name} & 'more'.img"),
                Self::File => format!("{VOLUMES_FOLDER}/{name}/disk.img"),
                Self::Block => format!("{DEVICES_FOLDER}/{name}"),
            },
            format: if image { DiskFormat::Qcow2 } else { DiskFormat::Raw },
            virtual_size: 1 << 30,
            backing: image.then(|| BackingImage {
                path: format!("{IMAGES_FOLDER}/{name}/disk/a.img"),
                format: DiskFormat::Raw,
                virtual_size: 1 << 30,
            }),
        }
    }
}

fn disk() -> impl Strategy<Value = (Disk, Content)> {
    let bus = |buses: &[DiskBus]| select(buses.iter().copied().map(Some).chain([None]).collect::<Vec<_>>());
    let anywhere = (bus(&[DiskBus::Virtio, DiskBus::Scsi]), any::<Option<bool>>());
    let on_sata = Just((Some(DiskBus::Sata), None));
    let as_disk = prop_oneof![3 => anywhere, 2 => on_sata];
    let as_disk = as_disk.prop_map(|(bus, read_only)| (Some(DiskTarget { bus, read_only }), None));
    let as_cd_rom = (bus(&[DiskBus::Sata, DiskBus::Scsi]), any::<Option<bool>>());
    let as_cd_rom = as_cd_rom.prop_map(|(bus, read_only)| (None, Some(CdRomTarget { bus, read_only })));
    let target = prop_oneof![4 => as_disk, 2 => as_cd_rom, 1 => Just((None, None))];
    let cache = select(vec![
        None,
        Some(DiskCache::None),
        Some(DiskCache::WriteThrough),
        Some(DiskCache::WriteBack),
    ]);
    let serial = option::of(prop_oneof![
        "[A-Za-z0-9_.+-]([A-Za-z0-9 _.+-]{0,18}[A-Za-z0-9_.+-])?",
        Just("implied".into())
    ]);
    let content = select(vec![Content::Image, Content::Empty, Content::File, Content::Block]);
    (target, option::of(1_u32..100), serial, cache, content).prop_map(
        |((disk, cdrom), boot_order, serial, cache, content)| {
            let disk = Disk {
                disk,
                cdrom,
                boot_order,
                serial,
                cache,
                ..Disk::default()
            };
            (disk, content)
        },
    )
}
