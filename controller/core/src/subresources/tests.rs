//! KubeVirt's tables of checks and effects (`pkg/virt-api/rest`, v1.9.0), and what clients match on.

use drydock_api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use serde_json::{Value, json};

use super::{
    machine_commands::{FoundMachine, expand, migrate, restart, start, stop},
    options::{Migrate, Restart, StartOptions, StopOptions, is_dry_run, read},
    *,
};

const BASE: &str = "/apis/subresources.kubevirt.io/v1";

fn target(path: &str) -> SubresourceTarget {
    match ApiPath::parse(path) {
        ApiPath::Target(target) => target,
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn path_names_document_target_or_nothing() {
    for (path, document) in [
        ("/", PublicDocument::Root),
        ("/apis", PublicDocument::Groups),
        ("/apis/", PublicDocument::Groups),
        ("/healthz", PublicDocument::Health),
        ("/openapi/v2", PublicDocument::OpenApi),
        ("/apis/subresources.kubevirt.io", PublicDocument::Group),
        (BASE, PublicDocument::Resources("v1")),
        (
            "/apis/subresources.kubevirt.io/v1alpha3",
            PublicDocument::Resources("v1alpha3"),
        ),
        ("/apis/subresources.kubevirt.io/v1/version", PublicDocument::Version),
        (
            "/apis/subresources.kubevirt.io/v1alpha3/guestfs",
            PublicDocument::Guestfs,
        ),
        ("/apis/subresources.kubevirt.io/v1/healthz", PublicDocument::Health),
    ] {
        assert_eq!(ApiPath::parse(path), ApiPath::Open(document), "{path}");
    }
    for path in [
        "/apis/apps",
        "/openapi/v3",
        "/apis/subresources.kubevirt.io/v2",
        "/apis/subresources.kubevirt.io/v1/namespaces",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns",
        "/apis/subresources.kubevirt.io/v1/namespaces//virtualmachines/vm/start",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachines",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachines/vm",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachines//start",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachines/vm//start",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/pods/p/start",
        "/apis/subresources.kubevirt.io/v1/start-cluster-profiler",
        "relative",
    ] {
        assert_eq!(ApiPath::parse(path), ApiPath::Unknown, "{path}");
    }
    for (path, resource, name, subresource, rest) in [
        (
            "ns/virtualmachines/vm/start",
            GroupResource::Machine,
            "vm",
            "start",
            &[][..],
        ),
        (
            "ns/virtualmachineinstances/vm/vnc/screenshot",
            GroupResource::Instance,
            "vm",
            "vnc/screenshot",
            &[],
        ),
        (
            "ns/virtualmachineinstances/vm/portforward/22/tcp",
            GroupResource::Instance,
            "vm",
            "portforward",
            &["22", "tcp"],
        ),
        ("ns/expand-vm-spec", GroupResource::ExpandSpec, "", "", &[]),
    ] {
        let found = target(&format!("{BASE}/namespaces/{path}"));
        assert_eq!((found.namespace.as_str(), found.version), ("ns", "v1"));
        assert_eq!(
            (found.resource, found.name.as_str(), found.subresource.as_str()),
            (resource, name, subresource),
            "{path}"
        );
        assert_eq!(found.rest, rest, "{path}");
    }
}

#[test]
fn listed_subresources_are_served_or_refused_with_message() {
    let list = discovery::document(&PublicDocument::Resources("v1"), "0").unwrap();
    let api = discovery::document(&PublicDocument::OpenApi, "0").unwrap();
    let resources = list["resources"].as_array().unwrap();
    assert!(resources.iter().all(|resource| resource["verbs"].is_null()));
    for resource in resources {
        let name = resource["name"].as_str().unwrap();
        let (plural, subresource) = name.split_once('/').unwrap_or((name, ""));
        let path = match subresource {
            "" => format!("{BASE}/namespaces/ns/{plural}"),
            _ => format!("{BASE}/namespaces/ns/{plural}/x/{subresource}"),
        };
        let of = |method: &str| operation(method, &target(&path));
        let method = match of("PUT") {
            Err(failure) if failure.code == 405 => "GET",
            _ => "PUT",
        };
        match of(method) {
            Ok(_) => {}
            Err(failure) => {
                assert_eq!(failure.code, 400, "{name}");
                assert!(failure.message.starts_with("Drydock does not support "), "{name}");
            }
        }
        assert_eq!(of("DELETE").unwrap_err().code, 405, "{name}");
        if !subresource.is_empty() {
            let entry = &api["paths"][format!("{BASE}/namespaces/{{namespace}}/{plural}/{{name}}/{subresource}")];
            assert!(entry[method.to_lowercase()].is_object(), "{name} {method}: {entry}");
        }
    }
    assert_eq!(
        operation("PUT", &target(&format!("{BASE}/namespaces/ns/virtualmachines/x/fly")))
            .unwrap_err()
            .code,
        404
    );
}

#[test]
fn discovery_prefers_v1_and_version_is_that_of_kubevirt() {
    let group = discovery::document(&PublicDocument::Group, "0.1.0").unwrap();
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let version = discovery::document(&PublicDocument::Version, "0.1.0").unwrap();
    assert_eq!(version["gitVersion"], "v1.9.0+drydock.0.1.0");
    for field in [
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ] {
        assert!(version[field].is_string(), "{field}");
    }
    assert_eq!(discovery::document(&PublicDocument::Health, "0.1.0"), None);
}

#[test]
fn verb_is_that_of_kubernetes() {
    for (method, named, expected) in [
        ("GET", true, Some("get")),
        ("HEAD", true, Some("get")),
        ("GET", false, Some("list")),
        ("PUT", true, Some("update")),
        ("POST", true, Some("create")),
        ("PATCH", true, Some("patch")),
        ("DELETE", true, Some("delete")),
        ("DELETE", false, Some("deletecollection")),
        ("TRACE", true, None),
    ] {
        assert_eq!(verb(method, named), expected, "{method}");
    }
}

#[test]
fn body_is_json_yaml_or_empty() {
    for body in [&b""[..], b" \n", b"{}", b"null", b"{\"paused\":null}", b"paused: null"] {
        assert_eq!(read::<StartOptions>(body), Ok(StartOptions::default()), "{body:?}");
    }
    let paused = StartOptions {
        paused: Some(true),
        dry_run: Some(vec!["All".into()]),
    };
    assert_eq!(
        read::<StartOptions>(br#"{"paused":true,"dryRun":["All"]}"#),
        Ok(paused.clone())
    );
    assert_eq!(
        read::<StartOptions>(b"paused: true\ndryRun: [All]\nother: 1\n"),
        Ok(paused)
    );
    for body in [&b"{"[..], b"{\"paused\":\"perhaps\"}", b"[]", b"\xff"] {
        let failure = read::<StartOptions>(body).unwrap_err();
        assert_eq!(failure.code, 400, "{body:?}");
        let prefix = "Can not unmarshal Request body to struct, error: ";
        assert!(failure.message.starts_with(prefix), "{}", failure.message);
        assert!(!failure.message.contains('\n'), "{}", failure.message);
    }
    assert_eq!(is_dry_run(None), Ok(false));
    assert_eq!(is_dry_run(Some(&[])), Ok(false));
    assert_eq!(is_dry_run(Some(&["All".into()])), Ok(true));
    assert_eq!(is_dry_run(Some(&["Some".into()])).unwrap_err().code, 400);
}

/// A machine `vm` with this run strategy, and with what else its object has.
struct SubresourceWorld {
    written: Value,
    instance: Option<Value>,
}

fn world(strategy: &str, phase: Option<&str>) -> SubresourceWorld {
    let spec = match strategy {
        "running: true" => json!({"running": true}),
        "running: false" => json!({"running": false}),
        strategy => json!({"runStrategy": strategy}),
    };
    let mut written = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "ns", "uid": "m"},
        "spec": spec,
        "status": {"created": phase.is_some(), "ready": false},
    });
    written["spec"]["template"] = json!({"spec": {"domain": {"devices": {}}}});
    let instance = phase.map(|phase| {
        json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "i", "ownerReferences": [{"apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachine", "name": "vm", "uid": "m", "controller": true}]},
            "spec": {"domain": {"devices": {}}, "terminationGracePeriodSeconds": 180},
            "status": if phase.is_empty() { json!({}) } else { json!({"phase": phase}) },
        })
    });
    SubresourceWorld { written, instance }
}

impl SubresourceWorld {
    fn decide<T>(&self, decide: impl Fn(&FoundMachine<'_>) -> T) -> T {
        let machine: VirtualMachine = serde_json::from_value(self.written.clone()).unwrap();
        let instance: Option<VirtualMachineInstance> = self
            .instance
            .clone()
            .map(|instance| serde_json::from_value(instance).unwrap());
        decide(&FoundMachine::new(&machine, &self.written, instance.as_ref()))
    }
}

/// An effect in short: `machine /spec/running: true`; a failure: its code and message.
fn short(result: Result<Effect, SubresourceError>) -> String {
    let effect = match result {
        Err(failure) => {
            let message = failure.message.replace(
                "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": ",
                "",
            );
            return format!("{}: {message}", failure.code);
        }
        Ok(effect) => effect,
    };
    let mut parts = Vec::new();
    for patch in effect.0 {
        let written = match patch.written {
            PatchedPart::Machine => "machine",
            PatchedPart::MachineStatus => "status",
            PatchedPart::Instance => "instance",
        };
        for operation in patch.operations.as_array().unwrap() {
            match operation["op"].as_str().unwrap() {
                "test" => {}
                "remove" => parts.push(format!("{written} -{}", operation["path"].as_str().unwrap())),
                _ => parts.push(format!(
                    "{written} {} {}",
                    operation["path"].as_str().unwrap(),
                    operation["value"]
                )),
            }
        }
    }
    parts.join("; ")
}

const REQUESTS: &str = "/status/stateChangeRequests";

#[test]
fn start_follows_the_table() {
    let request = |data: &str| format!("status {REQUESTS} [{{\"action\":\"Start\"{data}}}]");
    let paused = r#","data":{"paused":"true"}"#;
    let again = format!("status {REQUESTS} [{{\"action\":\"Stop\",\"uid\":\"i\"}},{{\"action\":\"Start\"}}]");
    for (strategy, phase, is_paused, expected) in [
        ("Halted", None, false, "machine /spec/runStrategy \"Always\"".to_owned()),
        (
            "Halted",
            Some("Succeeded"),
            false,
            "machine /spec/runStrategy \"Always\"".into(),
        ),
        ("running: false", None, false, "machine /spec/running true".into()),
        ("Halted", None, true, request(paused)),
        ("Halted", Some("Running"), false, "409: VM is already running".into()),
        ("Manual", None, false, request("")),
        ("Manual", None, true, request(paused)),
        ("Manual", Some("Succeeded"), false, again.clone()),
        ("Manual", Some("Failed"), false, again.clone()),
        ("Manual", Some("Running"), false, "409: VM is already running".into()),
        ("Manual", Some("Scheduling"), false, "409: VM is already running".into()),
        ("Manual", Some(""), false, request("")),
        ("RerunOnFailure", None, false, request("")),
        ("RerunOnFailure", Some("Succeeded"), false, again),
        (
            "RerunOnFailure",
            Some("Failed"),
            false,
            "409: RerunOnFailure does not support starting VM from failed state".into(),
        ),
        (
            "Always",
            None,
            false,
            "409: Always does not support manual start requests".into(),
        ),
        (
            "running: true",
            None,
            false,
            "409: Always does not support manual start requests".into(),
        ),
        (
            "Once",
            Some("Failed"),
            false,
            "409: Once does not support manual start requests".into(),
        ),
    ] {
        let options = StartOptions {
            paused: Some(is_paused),
            dry_run: None,
        };
        let result = world(strategy, phase).decide(|found| start(found, &options));
        assert_eq!(short(result), expected, "{strategy} {phase:?} paused {is_paused}");
    }
}

#[test]
fn stop_follows_the_table() {
    let request = format!("status {REQUESTS} [{{\"action\":\"Stop\",\"uid\":\"i\"}}]");
    let shorter = "instance /spec/terminationGracePeriodSeconds";
    let halted = "409: Halted only supports manual stop requests with a shorter graceperiod";
    for (strategy, phase, grace, expected) in [
        (
            "Always",
            Some("Running"),
            None,
            "machine /spec/runStrategy \"Halted\"".to_owned(),
        ),
        ("Always", None, None, "machine /spec/runStrategy \"Halted\"".into()),
        (
            "Once",
            Some("Failed"),
            None,
            "machine /spec/runStrategy \"Halted\"".into(),
        ),
        (
            "running: true",
            Some("Running"),
            None,
            "machine /spec/running false".into(),
        ),
        (
            "Always",
            Some("Running"),
            Some(0),
            format!("{shorter} 0; machine /spec/runStrategy \"Halted\""),
        ),
        (
            "Always",
            Some("Running"),
            Some(500),
            "machine /spec/runStrategy \"Halted\"".into(),
        ),
        ("Manual", Some("Running"), None, request.clone()),
        ("Manual", Some("Scheduling"), Some(9), format!("{shorter} 9; {request}")),
        ("Manual", None, None, "409: VM is not running".into()),
        ("RerunOnFailure", Some("Running"), None, request.clone()),
        (
            "RerunOnFailure",
            Some("Succeeded"),
            None,
            "409: VM is not running".into(),
        ),
        ("Halted", None, Some(0), "409: VM is not running".into()),
        ("Halted", Some("Failed"), Some(0), "409: VM is not running".into()),
        ("Halted", Some("Running"), None, halted.into()),
        ("Halted", Some("Running"), Some(180), halted.into()),
        ("Halted", Some("Running"), Some(0), format!("{shorter} 0; {request}")),
        (
            "Always",
            Some("Running"),
            Some(-1),
            "400: gracePeriod has to be greater or equal to 0".into(),
        ),
    ] {
        let options = StopOptions {
            grace_period: grace,
            dry_run: None,
        };
        let result = world(strategy, phase).decide(|found| stop(found, &options));
        assert_eq!(short(result), expected, "{strategy} {phase:?} {grace:?}");
    }
}

#[test]
fn restart_follows_the_table() {
    let request = format!("status {REQUESTS} [{{\"action\":\"Stop\",\"uid\":\"i\"}},{{\"action\":\"Start\"}}]");
    for (strategy, phase, grace, expected) in [
        ("Always", Some("Running"), None, request.clone()),
        ("Manual", Some("Succeeded"), Some(0), request.clone()),
        (
            "RerunOnFailure",
            Some("Running"),
            Some(0),
            format!("instance /spec/terminationGracePeriodSeconds 1; {request}"),
        ),
        ("Always", None, None, "409: VM is not running: Halted".into()),
        (
            "Halted",
            None,
            None,
            "409: RunStategy Halted does not support manual restart requests".into(),
        ),
        (
            "Once",
            Some("Running"),
            None,
            "409: RunStategy Once does not support manual restart requests".into(),
        ),
        (
            "Halted",
            None,
            Some(5),
            "400: For force restart, only gracePeriod=0 is supported for now".into(),
        ),
        (
            "Always",
            None,
            Some(-1),
            "400: gracePeriod has to be greater or equal to 0".into(),
        ),
    ] {
        let options = Restart {
            grace_period_seconds: grace,
            dry_run: None,
        };
        let result = world(strategy, phase).decide(|found| restart(found, &options));
        assert_eq!(short(result), expected, "{strategy} {phase:?} {grace:?}");
    }
}

#[test]
fn pending_requests_are_replaced_only_by_a_stop() {
    let pending = json!([{"action": "Start"}]);
    let mut busy = world("Manual", Some("Running"));
    busy.written["status"]["stateChangeRequests"] = pending.clone();
    let failure = busy.decide(|found| restart(found, &Restart::default())).unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (
            500,
            "Internal error occurred: unable to complete request: stop/start already underway"
        )
    );
    let Effect(patches) = busy.decide(|found| stop(found, &StopOptions::default())).unwrap();
    assert_eq!(
        patches[0].operations[0],
        json!({"op": "test", "path": REQUESTS, "value": pending})
    );
    assert_eq!(patches[0].operations[1]["op"], "replace");
}

#[test]
fn start_request_tests_the_read_state_and_ends_the_back_off() {
    let start = |world: &SubresourceWorld| {
        world.decide(|found| start(found, &StartOptions::default())).unwrap().0[0]
            .operations
            .clone()
    };
    let mut failing = world("Manual", None);
    let request = json!([{"action": "Start"}]);
    assert_eq!(
        start(&failing),
        json!([{"op": "test", "path": REQUESTS, "value": null}, {"op": "add", "path": REQUESTS, "value": request}])
    );
    failing.written["status"]["startFailure"] = json!({"consecutiveFailCount": 3});
    let operations = start(&failing);
    assert_eq!(
        operations[2],
        json!({"op": "test", "path": "/status/startFailure", "value": {"consecutiveFailCount": 3}})
    );
    assert_eq!(operations[3], json!({"op": "remove", "path": "/status/startFailure"}));
    failing.written.as_object_mut().unwrap().remove("status");
    let operations = start(&failing);
    assert_eq!(operations[0], json!({"op": "test", "path": "/status", "value": null}));
    assert_eq!(operations[1]["value"]["stateChangeRequests"], request);
}

#[test]
fn instance_of_another_owner_is_not_the_machines() {
    let mut world = world("Manual", Some("Running"));
    world.instance.as_mut().unwrap()["metadata"]["ownerReferences"][0]["uid"] = json!("other");
    let result = world.decide(|found| stop(found, &StopOptions::default()));
    assert_eq!(short(result), "409: VM is not running");
}

#[test]
fn migration_is_of_a_running_instance() {
    let options = Migrate {
        added_node_selector: Some([("zone".to_owned(), "b".to_owned())].into()),
        dry_run: None,
    };
    let of = |phase: Option<&str>| {
        world("Always", phase)
            .decide(|found| migrate("vm", found.instance, &options).map_err(|failure| failure.to_status()))
    };
    let spec = of(Some("Running")).unwrap();
    assert_eq!(
        (spec.vmi_name.as_str(), spec.added_node_selector["zone"].as_str()),
        ("vm", "b")
    );
    assert_eq!(
        of(None).unwrap_err()["message"],
        "virtualmachineinstance.kubevirt.io \"vm\" not found"
    );
    let not_running = of(Some("Scheduling")).unwrap_err();
    assert_eq!(not_running["code"], 409);
    assert_eq!(
        not_running["details"],
        json!({"group": "kubevirt.io", "kind": "virtualmachine", "name": "vm"})
    );
}

#[test]
fn machine_expands_unchanged_unless_instance_type_is_set() {
    let machine = world("Always", None).written;
    assert_eq!(expand(machine.clone(), "ns").unwrap(), machine);
    let with = |pointer: &str, value: Value| {
        let mut changed = machine.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        expand(changed, "ns").unwrap_err().message
    };
    assert_eq!(
        with("/metadata/namespace", json!("other")),
        "VM namespace must be empty or ns"
    );
    assert_eq!(with("/kind", json!("Pod")), "Object is not a valid VirtualMachine");
    assert_eq!(
        with("/spec/template", Value::Null),
        "Object is not a valid VirtualMachine"
    );
    assert_eq!(
        with("/spec/instancetype", json!({"name": "u1"})),
        "Drydock does not support instance types (spec.instancetype)."
    );
}

#[test]
fn failure_status_has_the_format_that_clients_parse() {
    let failure = SubresourceError::conflict(GroupResource::Instance, "vm", "VMI is paused");
    let status = failure.to_status();
    assert_eq!(
        status,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 409, "reason": "Conflict",
            "message": "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"vm\": VMI is paused",
            "details": {"group": "kubevirt.io", "kind": "virtualmachineinstance", "name": "vm"}})
    );
    let status = SubresourceError::internal("no").to_status();
    assert_eq!(status["message"], "Internal error occurred: no");
    assert_eq!(status["details"]["causes"][0]["message"], "no");
    // Websocket clients read no more of a body.
    let longest = SubresourceError::conflict(GroupResource::Instance, &"n".repeat(253), "VMI is not running");
    assert!(longest.to_status().to_string().len() <= 1024);
}
