//! Every state of a guest, and its report.

use std::{fs, path::Path};

use drydock_api::launcher::{BackingImage, DiskFormat, GuestOutcome, PreparedDisk};
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T00:00:00Z";

fn instance(spec: &Value, status: &Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": "u"}, "spec": spec, "status": status,
    }))
    .unwrap()
}

fn plain() -> Value {
    json!({
        "domain": {
            "cpu": {"cores": 2},
            "devices": {
                "disks": [{"name": "root"}],
                "interfaces": [{"name": "default", "macAddress": "02-00-00-00-00-0A"}],
            },
        },
        "volumes": [{"name": "root", "containerDisk": {"image": "i"}}],
    })
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "uid": "p"},
        "spec": {"containers": [], "volumes": [{"name": "root", "image": {"reference": "r@sha256:12"}}]},
        "status": {"podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}]},
    }))
    .unwrap()
}

fn domain(state: GuestState) -> ReportedDomain {
    ReportedDomain {
        state,
        cpu: None,
        machine: Some("pc-q35-10.0".into()),
        virt_type: "qemu".into(),
        memory: Some(64 << 20),
        qemu_version: Some("10.0.13".into()),
        libvirt_version: Some("11.3.0".into()),
        agent: None,
        is_thawed: false,
        credentials: None,
    }
}

fn ready() -> Ready {
    Ready {
        disks: vec![PreparedDisk {
            name: "root".into(),
            path: "/var/lib/drydock/disks/root.qcow2".into(),
            format: DiskFormat::Qcow2,
            virtual_size: 1 << 26,
            backing: Some(BackingImage {
                path: "/images/root/disk/d".into(),
                format: DiskFormat::Raw,
                virtual_size: 1 << 26,
            }),
        }],
        addresses: Vec::new(),
        post_copy: false,
        probes_readiness: false,
    }
}

struct Case {
    instance: VirtualMachineInstance,
    pod: Pod,
    domain: ReportedDomain,
    ready: Ready,
    readiness: Option<GuestReadiness>,
}

impl Case {
    fn new(spec: &Value, state: GuestState) -> Self {
        Self {
            instance: instance(spec, &Value::Null),
            pod: pod(),
            domain: domain(state),
            ready: ready(),
            readiness: None,
        }
    }

    fn report(&self) -> VirtualMachineInstanceStatus {
        report(&ObservedGuest {
            now: NOW.parse().unwrap(),
            instance: &self.instance,
            pod: &self.pod,
            ready: &self.ready,
            domain: &self.domain,
            readiness: self.readiness.as_ref(),
            targets: &[("root".into(), "vda".into())],
            host_model_known: true,
        })
    }

    fn condition(&self, type_: &str) -> Option<(String, String)> {
        let conditions = self.report().conditions;
        let found = conditions.into_iter().find(|condition| condition.type_ == type_)?;
        Some((found.status, found.reason.unwrap_or_default()))
    }
}

fn status_reason(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.into(), reason.into()))
}

#[test]
fn a_running_guest_is_reported_whole() {
    let case = Case::new(&plain(), GuestState::Running);
    let status = case.report();
    assert_eq!(status.phase, Some(Phase::Running));
    assert_eq!(status.phase_transition_timestamps.len(), 1);
    assert_eq!(status.interfaces[0].ip_address.as_deref(), Some("10.0.0.5"));
    assert_eq!(status.interfaces[0].ip_addresses.len(), 2);
    assert_eq!(status.interfaces[0].mac.as_deref(), Some("02:00:00:00:00:0a"));
    assert_eq!(status.volume_status[0].target.as_deref(), Some("vda"));
    assert_eq!(status.volume_status[0].size, Some(1 << 26));
    assert_eq!(status.memory.unwrap().guest_current.as_deref(), Some("64Mi"));
    let topology = status.current_cpu_topology.unwrap();
    assert_eq!((topology.sockets, topology.cores, topology.threads), (1, 2, 1));
    let drydock = status.drydock.unwrap();
    assert_eq!(drydock.images[0].image_id.as_deref(), Some("r@sha256:12"));
    assert_eq!(drydock.images[0].format, DiskFormat::Raw);
    assert_eq!(case.condition("Ready"), status_reason("True", ""));
    assert_eq!(case.condition("LiveMigratable"), status_reason("True", ""));
    assert_eq!(case.condition("Paused"), None);
    assert_eq!(case.condition("AgentConnected"), None);
}

#[test]
fn paused_guest_is_not_ready_and_reports_the_cause() {
    for (cause, reason) in [
        (PauseCause::User, "PausedByUser"),
        (PauseCause::IoError, "PausedIOError"),
        (PauseCause::Other("watchdog"), "Paused"),
    ] {
        let case = Case::new(&plain(), GuestState::Paused(cause));
        assert_eq!(case.report().phase, Some(Phase::Running));
        assert_eq!(case.condition("Paused"), status_reason("True", reason));
        assert_eq!(case.condition("Ready"), status_reason("False", "GuestNotRunning"));
        assert!(!gate_is_open(&case.domain, &case.ready, None));
    }
}

#[test]
fn an_end_is_not_the_agents_to_conclude() {
    let mut case = Case::new(&plain(), GuestState::Off);
    assert_eq!(case.report().phase, None);
    assert_eq!(case.condition("Ready"), status_reason("False", "GuestNotRunning"));
    case.instance.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    case.domain.state = GuestState::Running;
    assert_eq!(case.report().phase, None, "a final phase is never taken back");
    case.instance.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    case.domain.state = GuestState::Off;
    assert_eq!(
        case.report().phase,
        Some(Phase::Running),
        "left out, it would be removed"
    );
}

#[test]
fn ended_pod_is_added_to_the_reported_status() {
    let case = Case::new(&plain(), GuestState::Running);
    let first = case.report();
    let wanted = with_ended_pod(&first, "p", None, NOW.parse().unwrap());
    assert_eq!(wanted.drydock.as_ref().unwrap().ended_pods, ["p"]);
    assert_eq!(wanted.drydock.as_ref().unwrap().ending, None);
    assert!(differs(&first, &wanted));
    let again = with_ended_pod(&wanted, "p", None, NOW.parse().unwrap());
    assert_eq!(again, wanted, "recorded once");
    assert_eq!(wanted.phase, Some(Phase::Running));
    assert_eq!(wanted.conditions, first.conditions);
}

#[test]
fn launcher_report_is_kept_after_the_pod_is_gone() {
    let mut case = Case::new(&plain(), GuestState::Off);
    let first = case.report();
    let mut ended = EndedGuest {
        outcome: Some(GuestOutcome::Shutdown),
        message: "the guest shut down".into(),
        evicted: true,
        by_kubelet: false,
    };
    let wanted = with_ended_pod(&first, "p", Some(&ended), NOW.parse().unwrap());
    let ending = wanted.drydock.as_ref().unwrap().ending.clone().unwrap();
    assert_eq!(
        (ending.pod_uid.as_str(), ending.outcome, ending.evicted),
        ("p", GuestOutcome::Shutdown, true)
    );
    assert!(differs(&first, &wanted));
    case.instance.status = Some(wanted.clone());
    assert_eq!(case.report().drydock.unwrap().ending, Some(ending), "reports go on");
    case.pod.metadata.uid = Some("another".into());
    assert_eq!(case.report().drydock.unwrap().ending, None);
    // A launcher that was killed has reported nothing.
    ended.outcome = None;
    let unknown = with_ended_pod(&first, "p", Some(&ended), NOW.parse().unwrap());
    assert_eq!(unknown.drydock.unwrap().ending, None);
}

#[test]
fn guest_is_not_ready_while_pod_terminates_or_probe_fails() {
    let mut case = Case::new(&plain(), GuestState::Running);
    case.pod.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
    assert_eq!(case.condition("Ready"), status_reason("False", "PodTerminating"));

    let mut spec = plain();
    spec["readinessProbe"] = json!({"tcpSocket": {"port": 80}});
    let mut case = Case::new(&spec, GuestState::Running);
    assert_eq!(case.condition("Ready"), status_reason("False", "ContainersNotReady"));
    case.pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([
        {"name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0},
    ]))
    .unwrap();
    assert_eq!(case.condition("Ready"), status_reason("True", ""));
}

#[test]
fn readiness_by_launcher_decides_ready_and_gate() {
    let result = |ready: bool, message: &str| GuestReadiness {
        ready,
        message: message.into(),
    };
    let not_yet = "the guest's readiness probe has not succeeded";
    for (state, readiness, open, expected) in [
        (GuestState::Running, None, false, (false, not_yet.to_owned())),
        (
            GuestState::Running,
            Some(result(false, "")),
            false,
            (false, not_yet.to_owned()),
        ),
        (
            GuestState::Running,
            Some(result(false, "status 503")),
            false,
            (false, format!("{not_yet}: status 503")),
        ),
        (GuestState::Running, Some(result(true, "")), true, (true, String::new())),
        (
            GuestState::Paused(PauseCause::User),
            Some(result(true, "")),
            false,
            (false, "the guest is paused".into()),
        ),
    ] {
        let mut spec = plain();
        spec["readinessProbe"] = json!({"tcpSocket": {"port": 80}});
        let mut case = Case::new(&spec, state);
        case.ready.probes_readiness = true;
        case.readiness = readiness;
        let conditions = case.report().conditions;
        let found = conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        let reported = (found.status == "True", found.message.clone().unwrap_or_default());
        assert_eq!(reported, expected, "{state:?}");
        assert_eq!(gate_is_open(&case.domain, &case.ready, case.readiness.as_ref()), open);
    }
    // There is no probe, or the kubelet runs it.
    assert!(gate_is_open(&domain(GuestState::Running), &ready(), None));
    assert!(!gate_is_open(&domain(GuestState::Off), &ready(), None));
}

#[test]
fn status_has_system_from_agent_and_addresses_from_pod() {
    let mut case = Case::new(&plain(), GuestState::Running);
    case.domain.agent = Some(GuestAgent {
        os: GuestOsInfo {
            id: Some("debian".into()),
            ..GuestOsInfo::default()
        },
        interfaces: vec![("eth0".into(), "02:00:00:00:00:0A".into())],
        is_unsupported: false,
    });
    let status = case.report();
    assert_eq!(
        status.interfaces[0].ip_address.as_deref(),
        Some("10.0.0.5"),
        "its pod's"
    );
    assert_eq!(status.interfaces[0].interface_name.as_deref(), Some("eth0"));
    assert_eq!(status.interfaces[0].info_source.as_deref(), Some("domain, guest-agent"));
    assert_eq!(status.guest_os_info.id.as_deref(), Some("debian"));
    assert_eq!(case.condition("AgentConnected"), status_reason("True", ""));
}

#[test]
fn the_image_of_the_first_start_stays_recorded() {
    let mut case = Case::new(&plain(), GuestState::Running);
    let first = case.report();
    case.instance.status = Some(first.clone());
    case.pod.spec.as_mut().unwrap().volumes = None;
    assert_eq!(case.report().drydock, first.drydock);
}

#[test]
fn reason_of_the_controller_is_no_difference_of_a_ready_guest() {
    let case = Case::new(&plain(), GuestState::Running);
    let wanted = case.report();
    let stored = |change: &dyn Fn(&mut Condition)| {
        let mut stored = wanted.clone();
        let ready = stored
            .conditions
            .iter_mut()
            .find(|condition| condition.type_ == "Ready");
        change(ready.unwrap());
        stored
    };
    let of_the_controller = stored(&|ready| {
        ready.reason = Some("GuestNotRunning".into());
        ready.message = Some("the guest is not running yet".into());
    });
    assert!(!differs(&of_the_controller, &wanted));
    assert!(differs(&stored(&|ready| ready.status = "False".into()), &wanted));
    assert!(differs(&stored(&|ready| ready.last_transition_time = None), &wanted));
    // A reason of the agent's own is always compared.
    let paused = Case::new(&plain(), GuestState::Paused(PauseCause::User)).report();
    let mut other = paused.clone();
    for condition in &mut other.conditions {
        condition.message = Some("another".into());
    }
    assert!(differs(&other, &paused));
}

#[test]
fn unchanged_guest_report_is_not_written_again() {
    for state in [
        GuestState::Running,
        GuestState::Paused(PauseCause::User),
        GuestState::Off,
    ] {
        let mut case = Case::new(&plain(), state);
        let first = case.report();
        assert!(differs(&VirtualMachineInstanceStatus::default(), &first));
        let mut current = first.clone();
        // Fields that the controller writes make no difference.
        current.node_name = Some("a".into());
        current.active_pods.insert("p".into(), "a".into());
        current.conditions.push(Condition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            ..Condition::default()
        });
        case.instance.status = Some(current.clone());
        assert!(!differs(&current, &case.report()), "{state:?}");
    }
}

#[test]
fn agent_without_required_commands_is_reported_as_unsupported() {
    let of = |status: &VirtualMachineInstanceStatus| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.type_ == types::AGENT_VERSION_NOT_SUPPORTED && condition.status == "True")
    };
    for is_unsupported in [false, true] {
        let mut case = Case::new(&plain(), GuestState::Running);
        assert!(!of(&case.report()));
        case.domain.agent = Some(GuestAgent {
            is_unsupported,
            ..GuestAgent::default()
        });
        assert_eq!(of(&case.report()), is_unsupported);
    }
}

#[test]
fn frozen_file_systems_are_reported_until_thaw_or_end() {
    let at = Timestamp::from_second(1_000_000).ok();
    for (state, is_thawed, expected) in [
        (GuestState::Running, false, true),
        (GuestState::Paused(PauseCause::User), false, true),
        (GuestState::Running, true, false),
        (GuestState::Off, false, false),
    ] {
        let mut case = Case::new(&plain(), state);
        freeze::set(case.instance.status.get_or_insert_default(), at);
        case.domain.is_thawed = is_thawed;
        let wanted = case.report();
        let found = (freeze::is_frozen(&wanted), freeze::thaw_at(&wanted));
        assert_eq!(found, (expected, at.filter(|_| expected)), "{state:?} {is_thawed}");
        let before = case.instance.status.clone().unwrap();
        assert!(freeze::is_frozen(&own_part(&before, Timestamp::UNIX_EPOCH)));
    }
}

#[test]
fn unresponsive_guest_agent_keeps_the_last_reported_data() {
    let mut case = Case::new(&plain(), GuestState::Running);
    let agent = GuestAgent {
        os: GuestOsInfo {
            id: Some("debian".into()),
            ..GuestOsInfo::default()
        },
        interfaces: vec![("eth0".into(), "02:00:00:00:00:0a".into())],
        is_unsupported: true,
    };
    case.domain.agent = Some(agent.clone());
    assert_eq!(GuestAgent::of_report(&case.report()), agent);
    assert_eq!(
        GuestAgent::of_report(&VirtualMachineInstanceStatus::default()),
        GuestAgent::default()
    );
}

#[test]
fn credentials_of_the_agent_are_reported() {
    let mut case = Case::new(&plain(), GuestState::Running);
    assert_eq!(case.condition("AccessCredentialsSynchronized"), None);
    for (result, expected) in [
        (Ok(()), status_reason("True", "")),
        (
            Err("Guest agent is offline".to_owned()),
            status_reason("False", "NotSynchronized"),
        ),
    ] {
        case.domain.credentials = Some(result);
        assert_eq!(case.condition("AccessCredentialsSynchronized"), expected);
    }
}

#[test]
fn agent_policy_permits_the_conditions_written_by_agents() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/policies/agent-instances.yaml");
    let text = fs::read_to_string(file).unwrap();
    let list = text.split_once("ownConditions\n").unwrap().1;
    let list = &list[list.find('[').unwrap()..=list.find(']').unwrap()];
    let permitted: Vec<&str> = list.split('\'').skip(1).step_by(2).collect();
    assert_eq!(permitted, OWN_CONDITIONS);
}
