//! Cases with one misconfiguration each.

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Pod,
};
use serde_json::{Value, json};

use crate::check::{
    CheckOutcome, Survey,
    fixture::{self, changed, of},
};

/// A misconfiguration: the check that finds it, the expected outcome, and the change of the survey that causes it.
pub(super) type Case = (&'static str, CheckOutcome, fn(&mut Survey));

fn metadata(labels: &Value, namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "labels": labels})
}

pub(super) fn deployment(namespace: &str, name: &str, labels: &Value) -> Deployment {
    of(json!({"metadata": metadata(labels, namespace, name),
        "spec": {"selector": {}, "template": {"spec": {"containers": []}}}}))
}

pub(super) fn daemon_set(name: &str, arguments: &[&str]) -> DaemonSet {
    of(
        json!({"metadata": metadata(&json!({}), "kube-system", name), "spec": {"selector": {},
        "template": {"spec": {"containers": [{"name": name, "args": arguments}]}}}}),
    )
}

/// Sets a condition of an agent's report to not true.
fn untrue(survey: &mut Survey, node: usize, type_: &str, message: &str) {
    let status = changed(&mut survey.snapshot.hypervisors, node).status.as_mut().unwrap();
    let mut conditions = status.conditions.iter_mut();
    let condition = conditions.find(|condition| condition.type_ == type_).unwrap();
    condition.status = "False".into();
    condition.message = message.into();
}

fn maintenance(survey: &mut Survey, node: &str, created: &str, status: &Value) {
    let object = json!({"metadata": {"name": node, "creationTimestamp": created}, "spec": {"nodeName": node},
        "status": status});
    let group = drydock_api::maintenance::Group::Medik8s;
    survey.snapshot.maintenances.push((group, of(object)));
}

fn hyperconverged(survey: &mut Survey, namespace: &str, spec: &Value, status: &Value) {
    let object = json!({"metadata": {"namespace": namespace, "name": "kubevirt-hyperconverged"}, "spec": spec,
        "status": status});
    survey.snapshot.hyperconvergeds.push(of(object));
}

fn config_map(survey: &mut Survey, data: &Value) {
    let object = json!({"metadata": {"namespace": "drydock", "name": "kubevirt-config"}, "data": data});
    survey.snapshot.config_maps.push(of(object));
}

fn taint(survey: &mut Survey, node: usize, key: &str, effect: &str) {
    let spec = changed(&mut survey.snapshot.nodes, node).spec.get_or_insert_default();
    spec.taints = of(json!([{"key": key, "effect": effect}]));
}

/// Removes the pod with this name.
fn without_pod(survey: &mut Survey, name: &str) {
    survey
        .snapshot
        .pods
        .retain(|pod| pod.metadata.name.as_deref() != Some(name));
}

fn pod<'a>(survey: &'a mut Survey, name: &str) -> &'a mut Pod {
    let mut pods = survey.snapshot.pods.iter();
    let index = pods.position(|pod| pod.metadata.name.as_deref() == Some(name)).unwrap();
    changed(&mut survey.snapshot.pods, index)
}

fn quota(survey: &mut Survey, hard: &Value, used: &Value) {
    let object =
        json!({"metadata": {"namespace": "shop", "name": "small"}, "spec": {"hard": hard}, "status": {"used": used}});
    survey.quotas.push(of(object));
}

fn budget(survey: &mut Survey, allowed: i32) {
    let object = json!({"metadata": {"namespace": "shop", "name": "everything"},
        "spec": {"selector": {"matchLabels": {"kubevirt.io/created-by": "web"}}}, "status": {"disruptionsAllowed": allowed,
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    survey.snapshot.budgets.push(of(object));
}

const KUBERNETES: &[Case] = &[
    (
        "the API server has a supported version",
        CheckOutcome::Error,
        |survey| {
            survey.version = Some("v1.34.2".into());
        },
    ),
    (
        "the API server has a supported version",
        CheckOutcome::Warning,
        |survey| {
            survey.version = Some("v1.38.0".into());
        },
    ),
    ("nodes have supported versions", CheckOutcome::Warning, |survey| {
        let status = changed(&mut survey.snapshot.nodes, 1).status.as_mut().unwrap();
        status.node_info.as_mut().unwrap().kubelet_version = "v1.34.0".into();
    }),
    ("nodes have supported versions", CheckOutcome::Warning, |survey| {
        let status = changed(&mut survey.snapshot.nodes, 1).status.as_mut().unwrap();
        status.node_info.as_mut().unwrap().container_runtime_version = "containerd://1.7.27".into();
    }),
    ("custom resources are served", CheckOutcome::Error, |survey| {
        drop(survey.definitions.remove(0));
    }),
    ("custom resources are served", CheckOutcome::Error, |survey| {
        survey.definitions[0].spec.versions[0].served = false;
    }),
    ("custom resources are served", CheckOutcome::Error, |survey| {
        let refused = json!({"conditions": [{"type": "NamesAccepted", "status": "False", "message": "hv is taken"}]});
        survey.definitions[0].status = Some(of(refused));
    }),
    ("admission policies are in force", CheckOutcome::Warning, |survey| {
        drop(survey.policies.remove(0));
    }),
    ("admission policies are in force", CheckOutcome::Warning, |survey| {
        drop(survey.policy_bindings.remove(1));
    }),
];

const CONTROLLERS: &[Case] = &[
    ("a replica of the controller is ready", CheckOutcome::Error, |survey| {
        survey.deployments[0].status.as_mut().unwrap().ready_replicas = None;
    }),
    ("another replica can take over", CheckOutcome::Warning, |survey| {
        survey.deployments[0].status.as_mut().unwrap().ready_replicas = Some(1);
    }),
    ("another replica can take over", CheckOutcome::Warning, |survey| {
        let deployment = &mut survey.deployments[0];
        deployment.spec.as_mut().unwrap().replicas = Some(1);
        deployment.status.as_mut().unwrap().ready_replicas = Some(1);
    }),
    ("replicas are on different nodes", CheckOutcome::Warning, |survey| {
        pod(survey, "drydock-controller-b").spec.as_mut().unwrap().node_name = Some("a".into());
    }),
    ("one replica leads", CheckOutcome::Error, |survey| {
        let spec = survey.leases[0].spec.as_mut().unwrap();
        spec.renew_time = of(json!("2026-11-27T14:01:00.000000Z"));
    }),
    ("one replica leads", CheckOutcome::Error, |survey| {
        survey.leases[0].spec.as_mut().unwrap().holder_identity = Some(String::new());
    }),
    ("Drydock is installed once", CheckOutcome::Error, |survey| {
        let mut other = survey.deployments[0].clone();
        other.metadata.namespace = Some("virtualization".into());
        survey.deployments.push(other);
    }),
    ("images have one version", CheckOutcome::Warning, |survey| {
        let spec = survey.daemon_sets[0].spec.as_mut().unwrap();
        let containers = &mut spec.template.spec.as_mut().unwrap().containers;
        containers[0].image = Some("registry.example:5000/drydock/agent:v2".into());
    }),
];

const WEBHOOK_CASES: &[Case] = &[
    ("webhooks are registered", CheckOutcome::Error, |survey| {
        survey.validating[0]
            .webhooks
            .as_mut()
            .unwrap()
            .retain(|webhook| !webhook.name.contains("eviction"));
    }),
    ("webhooks are registered", CheckOutcome::Warning, |survey| {
        survey.mutating.clear();
    }),
    ("webhooks have certificates", CheckOutcome::Error, |survey| {
        survey.validating[0].webhooks.as_mut().unwrap()[2]
            .client_config
            .ca_bundle = None;
    }),
    ("certificates are valid and renewed", CheckOutcome::Error, |survey| {
        for survey in &mut survey.leases {
            survey.spec.as_mut().unwrap().renew_time = of(json!("2026-11-29T12:00:00.000000Z"));
        }
        survey.snapshot.at = "2026-11-29T12:00:00Z".parse().unwrap();
    }),
    ("certificates are valid and renewed", CheckOutcome::Warning, |survey| {
        for survey in &mut survey.leases {
            survey.spec.as_mut().unwrap().renew_time = of(json!("2026-11-29T00:00:01.000000Z"));
        }
        survey.snapshot.at = "2026-11-29T00:00:01Z".parse().unwrap();
    }),
    ("certificates are valid and renewed", CheckOutcome::Error, |survey| {
        let garbage = k8s_openapi::ByteString(b"garbage".into());
        survey.mutating[0].webhooks.as_mut().unwrap()[0].client_config.ca_bundle = Some(garbage);
    }),
    (
        "webhooks see all namespaces with virtual machines",
        CheckOutcome::Error,
        |survey| {
            let selector = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["shop"]}]});
            survey.validating[0].webhooks.as_mut().unwrap()[4].namespace_selector = of(selector);
        },
    ),
    (
        "webhooks see all namespaces with virtual machines",
        CheckOutcome::Warning,
        |survey| {
            let selector = json!({"matchLabels": {"checked": "true"}});
            survey.validating[0].webhooks.as_mut().unwrap()[1].object_selector = of(selector);
        },
    ),
    (
        "the Service of the webhooks has endpoints",
        CheckOutcome::Error,
        |survey| {
            survey.endpoints[0].endpoints[0].conditions.as_mut().unwrap().ready = Some(false);
        },
    ),
    ("the subresources API is available", CheckOutcome::Error, |survey| {
        drop(survey.api_services.remove(1));
    }),
    ("the subresources API is available", CheckOutcome::Error, |survey| {
        let status =
            json!({"conditions": [{"type": "Available", "status": "False", "message": "no response from 10.0.0.1"}]});
        survey.api_services[0].status = Some(of(status));
    }),
    ("the subresources API is available", CheckOutcome::Error, |survey| {
        let spec = survey.api_services[0].spec.as_mut().unwrap();
        spec.service.as_mut().unwrap().name = Some("virt-api".into());
    }),
];

const AGENTS: &[Case] = &[
    ("each node has an agent", CheckOutcome::Warning, |survey| {
        without_pod(survey, "drydock-agent-c");
    }),
    ("each node has an agent", CheckOutcome::Error, |survey| {
        without_pod(survey, "drydock-agent-a");
        let spec = survey.daemon_sets[0]
            .spec
            .as_mut()
            .unwrap()
            .template
            .spec
            .as_mut()
            .unwrap();
        spec.node_selector = of(json!({"kubernetes.io/hostname": "b"}));
    }),
    ("each node has an agent", CheckOutcome::Warning, |survey| {
        without_pod(survey, "drydock-agent-c");
        taint(survey, 2, "dedicated", "NoSchedule");
        let spec = survey.daemon_sets[0]
            .spec
            .as_mut()
            .unwrap()
            .template
            .spec
            .as_mut()
            .unwrap();
        spec.tolerations = of(json!([{"key": "other", "operator": "Exists"}]));
    }),
    ("agents are ready", CheckOutcome::Error, |survey| {
        let waiting = json!({"conditions": [], "containerStatuses": [{"name": "agent", "image": "", "imageID": "",
            "ready": false, "restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
        pod(survey, "drydock-agent-b").status = Some(of(waiting));
    }),
    ("agents renew their Leases", CheckOutcome::Error, |survey| {
        let spec = survey.leases[2].spec.as_mut().unwrap();
        spec.renew_time = of(json!("2026-11-27T14:01:20.000000Z"));
    }),
    ("agents renew their Leases", CheckOutcome::Error, |survey| {
        drop(survey.leases.remove(1));
    }),
    ("agents have one version", CheckOutcome::Warning, |survey| {
        changed(&mut survey.snapshot.hypervisors, 2)
            .status
            .as_mut()
            .unwrap()
            .agent_version = "0.2.0".into();
    }),
    ("the namespace of agents admits them", CheckOutcome::Error, |survey| {
        survey.namespaces[0].metadata.labels = of(json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    }),
    ("nodes accept virtual machines", CheckOutcome::Warning, |survey| {
        untrue(survey, 2, "Ready", "/dev/kvm is not there");
    }),
    ("nodes accept virtual machines", CheckOutcome::Warning, |survey| {
        drop(survey.snapshot.hypervisors.remove(2));
    }),
    ("nodes accept virtual machines", CheckOutcome::Error, |survey| {
        (0..3).for_each(|node| untrue(survey, node, "Ready", "/dev/kvm is not there"));
    }),
    ("inspections of nodes succeed", CheckOutcome::Warning, |survey| {
        untrue(survey, 1, "Inspected", "libvirtd hung");
    }),
    (
        "guests can have a network on each node",
        CheckOutcome::Warning,
        |survey| {
            untrue(survey, 1, "GuestNetwork", "user namespaces are off");
        },
    ),
    (
        "CPU labels of nodes are kept up to date",
        CheckOutcome::Warning,
        |survey| {
            let annotations = json!({"node-labeller.kubevirt.io/skip-node": "True"});
            changed(&mut survey.snapshot.nodes, 1).metadata.annotations = of(annotations);
            untrue(survey, 1, "Labelled", "labels are frozen by annotation");
        },
    ),
    (
        "CPU labels of nodes are kept up to date",
        CheckOutcome::Warning,
        |survey| {
            untrue(survey, 1, "Labelled", "not known yet");
        },
    ),
];

const NODES: &[Case] = &[
    ("kubelets are ready", CheckOutcome::Error, |survey| {
        let status = changed(&mut survey.snapshot.nodes, 2).status.as_mut().unwrap();
        status.conditions =
            of(json!([{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]));
    }),
    (
        "no node is cordoned without a maintenance",
        CheckOutcome::Warning,
        |survey| {
            changed(&mut survey.snapshot.nodes, 2)
                .spec
                .get_or_insert_default()
                .unschedulable = Some(true);
        },
    ),
    (
        "taints that drain nodes have the effect NoSchedule",
        CheckOutcome::Error,
        |survey| {
            taint(survey, 2, "kubevirt.io/drain", "NoExecute");
        },
    ),
    (
        "taints that drain nodes have the effect NoSchedule",
        CheckOutcome::Warning,
        |survey| {
            taint(survey, 2, "kubevirt.io/drain", "PreferNoSchedule");
        },
    ),
    ("guests run with KVM", CheckOutcome::Warning, |survey| {
        config_map(survey, &json!({"debug.useEmulation": "true"}));
        untrue(survey, 2, "KVMAvailable", "/dev/kvm is not there");
    }),
];

const CONFIGURATION: &[Case] = &[
    ("configuration has allowed values", CheckOutcome::Error, |survey| {
        let spec = json!({"liveMigrationConfig": {"parallelMigrationsPerCluster": 0}});
        let condition = json!({"type": "InForce", "status": "False", "reason": "Refused", "lastTransitionTime": fixture::AT,
            "message": "a value is not allowed"});
        hyperconverged(survey, "drydock", &spec, &json!({"conditions": [condition]}));
    }),
    ("configuration has allowed values", CheckOutcome::Error, |survey| {
        config_map(survey, &json!({"min-cpu-model": "no model"}));
    }),
    ("nodes follow the configuration", CheckOutcome::Warning, |survey| {
        let condition = json!({"type": "InForce", "status": "False", "reason": "NotOnAllNodes", "lastTransitionTime": fixture::AT,
            "message": "2 of 3 nodes apply this configuration; not yet applied on c"});
        hyperconverged(survey, "drydock", &json!({}), &json!({"conditions": [condition]}));
    }),
    ("nodes follow the configuration", CheckOutcome::Warning, |survey| {
        let condition = json!({"type": "DefaultCPUModelOffered", "status": "False", "reason": "NoNodeOffersModel",
            "lastTransitionTime": fixture::AT, "message": "no node offers the default CPU model Icelake-Server"});
        hyperconverged(survey, "drydock", &json!({}), &json!({"conditions": [condition]}));
    }),
    (
        "one object of each kind configures the cluster",
        CheckOutcome::Warning,
        |survey| {
            hyperconverged(survey, "drydock", &json!({}), &json!({}));
            hyperconverged(survey, "openshift-cnv", &json!({}), &json!({}));
        },
    ),
    (
        "one object of each kind configures the cluster",
        CheckOutcome::Warning,
        |survey| {
            hyperconverged(survey, "default", &json!({}), &json!({}));
        },
    ),
    (
        "no legacy configuration is mixed with a HyperConverged",
        CheckOutcome::Warning,
        |survey| {
            config_map(survey, &json!({}));
            hyperconverged(survey, "drydock", &json!({}), &json!({}));
        },
    ),
];

const OTHERS: &[Case] = &[
    ("no other KubeVirt is installed", CheckOutcome::Error, |survey| {
        survey
            .deployments
            .push(deployment("kubevirt", "virt-controller", &json!({})));
    }),
    ("no other KubeVirt is installed", CheckOutcome::Error, |survey| {
        let mut handler = daemon_set("handlers", &[]);
        handler.metadata.labels = of(json!({"kubevirt.io": "virt-handler"}));
        survey.daemon_sets.push(handler);
    }),
    ("no other KubeVirt is installed", CheckOutcome::Warning, |survey| {
        let mut definition = survey.definitions[0].clone();
        definition.metadata.name = Some("kubevirts.kubevirt.io".into());
        survey.definitions.push(definition);
    }),
    (
        "no node maintenance operator is installed",
        CheckOutcome::Error,
        |survey| {
            let name = "node-maintenance-operator-controller-manager";
            survey.deployments.push(deployment("medik8s", name, &json!({})));
        },
    ),
    (
        "kured does not reboot nodes by itself",
        CheckOutcome::Warning,
        |survey| {
            survey.daemon_sets.push(daemon_set("kured", &[]));
        },
    ),
    ("kured does not reboot nodes by itself", CheckOutcome::Error, |survey| {
        survey.daemon_sets.push(daemon_set("kured", &["--force-reboot=true"]));
    }),
    (
        "the descheduler waits for guests to move",
        CheckOutcome::Warning,
        |survey| {
            let job = json!({"metadata": {"namespace": "kube-system", "name": "descheduler"}, "spec": {"schedule": "*/2 * * * *",
            "jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}}});
            survey.cron_jobs.push(of(job));
        },
    ),
    (
        "no autoscaler removes nodes with guests",
        CheckOutcome::Warning,
        |survey| {
            let labels = json!({"app.kubernetes.io/name": "cluster-autoscaler"});
            survey.deployments.push(deployment("kube-system", "scaler", &labels));
        },
    ),
    (
        "no autoscaler removes nodes with guests",
        CheckOutcome::Warning,
        |survey| {
            survey
                .deployments
                .push(deployment("kube-system", "karpenter", &json!({})));
        },
    ),
];

const GUESTS: &[Case] = &[
    (
        "guests that have to move can be migrated",
        CheckOutcome::Error,
        |survey| {
            let instance = changed(&mut survey.snapshot.instances, 0);
            let condition = json!([{"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable",
            "message": "PVC data is not shared"}]);
            instance.status.as_mut().unwrap().conditions = of(condition);
        },
    ),
    ("each guest finds another node", CheckOutcome::Error, |survey| {
        let instance = changed(&mut survey.snapshot.instances, 0);
        instance.spec.node_selector = of(json!({"kubernetes.io/hostname": "a"}));
    }),
    ("each guest finds another node", CheckOutcome::Warning, |survey| {
        let instance = changed(&mut survey.snapshot.instances, 0);
        instance.spec.node_selector = of(json!({"kubernetes.io/hostname": "a"}));
        instance.spec.eviction_strategy = of(json!("LiveMigrateIfPossible"));
    }),
    (
        "virtual machines that are to start find a node",
        CheckOutcome::Error,
        |survey| {
            let mut instance = (*survey.snapshot.instances[0]).clone();
            instance.metadata.name = Some("new".into());
            instance.metadata.uid = Some("new".into());
            instance.spec.node_selector = of(json!({"disk": "fast"}));
            instance.status = None;
            survey.snapshot.instances.push(instance.into());
        },
    ),
    ("guests have an eviction strategy", CheckOutcome::Warning, |survey| {
        changed(&mut survey.snapshot.instances, 0).spec.eviction_strategy = None;
    }),
    (
        "no other PodDisruptionBudget selects guests' pods",
        CheckOutcome::Warning,
        |survey| budget(survey, 0),
    ),
    (
        "no other PodDisruptionBudget selects guests' pods",
        CheckOutcome::Error,
        |survey| {
            budget(survey, 0);
            changed(&mut survey.snapshot.instances, 0).spec.eviction_strategy = of(json!("None"));
        },
    ),
    (
        "quotas leave room for the pod that a guest moves to",
        CheckOutcome::Error,
        |survey| {
            quota(survey, &json!({"pods": "3"}), &json!({"pods": "3"}));
        },
    ),
    (
        "quotas leave room for the pod that a guest moves to",
        CheckOutcome::Error,
        |survey| {
            quota(
                survey,
                &json!({"requests.memory": "15Gi"}),
                &json!({"requests.memory": "12Gi"}),
            );
        },
    ),
    (
        "quotas leave room for the pod that a guest moves to",
        CheckOutcome::Error,
        |survey| {
            quota(
                survey,
                &json!({"count/virtualmachineinstancemigrations.kubevirt.io": "0"}),
                &json!({}),
            );
        },
    ),
    (
        "no guest waits for its node to be fenced",
        CheckOutcome::Error,
        |survey| {
            let status = changed(&mut survey.snapshot.instances, 0).status.as_mut().unwrap();
            let condition =
                json!({"type": "FencingRequired", "status": "True", "message": "the agent of a is unresponsive"});
            status.conditions.push(of(condition));
        },
    ),
];

const MAINTENANCE: &[Case] = &[
    ("maintenances name nodes that exist", CheckOutcome::Warning, |survey| {
        maintenance(survey, "gone", "2026-11-27T14:00:00Z", &json!({"phase": "Failed"}));
    }),
    (
        "each node has one maintenance at most",
        CheckOutcome::Warning,
        |survey| {
            maintenance(survey, "c", "2026-11-27T14:00:00Z", &json!({"phase": "Running"}));
            maintenance(survey, "c", "2026-11-27T14:00:00Z", &json!({"phase": "Failed"}));
        },
    ),
    ("maintenances make progress", CheckOutcome::Warning, |survey| {
        let status = json!({"phase": "Running", "lastError": "budget pg allows no eviction"});
        maintenance(survey, "c", "2026-11-27T13:00:00Z", &status);
    }),
    ("maintenances make progress", CheckOutcome::Error, |survey| {
        let status = json!({"phase": "Failed", "lastError": "the node was not empty in time"});
        maintenance(survey, "c", "2026-11-27T14:00:00Z", &status);
    }),
    ("maintenances make progress", CheckOutcome::Warning, |survey| {
        maintenance(survey, "c", "2026-11-27T13:00:00Z", &json!({"phase": "Succeeded"}));
        let (_, object) = &mut survey.snapshot.maintenances[0];
        let metadata = &mut std::sync::Arc::make_mut(object).metadata;
        metadata.deletion_timestamp = of(json!("2026-11-27T13:30:00Z"));
        metadata.finalizers = Some(vec!["example.com/audit".into()]);
    }),
    ("no maintenance is forgotten", CheckOutcome::Warning, |survey| {
        maintenance(survey, "c", "2026-11-01T14:00:00Z", &json!({"phase": "Succeeded"}));
    }),
    ("drains are not blocked", CheckOutcome::Error, |survey| {
        let drain = json!({"requestedBy": ["Maintenance"], "startedAt": fixture::AT, "total": 1, "left": 1, "moving": 0,
            "waiting": 0, "blocked": 1, "shuttingDown": 0, "remaining": [{"namespace": "shop", "name": "db",
                "state": "Blocked", "reason": "NotMigratable", "message": "the guest cannot be migrated"}]});
        let status = changed(&mut survey.snapshot.hypervisors, 2).status.as_mut().unwrap();
        status.drain = Some(of(drain));
    }),
    ("migrations begin", CheckOutcome::Warning, |survey| {
        let migration = json!({"metadata": {"namespace": "shop", "name": "web-1", "creationTimestamp": "2026-11-27T13:40:00Z"},
            "spec": {"vmiName": "web"}, "status": {"phase": "Pending", "conditions": [{"type": "Waiting", "status": "True",
                "reason": "TargetNodeLimit", "message": "2 guests arrive at b already"}]}});
        survey.snapshot.migrations.push(of(migration));
    }),
    ("you may put nodes into maintenance", CheckOutcome::Warning, |survey| {
        survey.rights[0].allowed = false;
    }),
];

pub(super) const CASES: [&[Case]; 9] = [
    KUBERNETES,
    CONTROLLERS,
    WEBHOOK_CASES,
    AGENTS,
    NODES,
    CONFIGURATION,
    OTHERS,
    GUESTS,
    MAINTENANCE,
];
