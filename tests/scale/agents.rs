//! The agents of all nodes, as far as running guests are concerned.
//!
//! The agents' own [`report`] computes the status of each guest.

use std::sync::Arc;

use drydock_api::{
    AGENT_FIELD_MANAGER,
    kubevirt::{Phase, VirtualMachineInstance, VirtualMachineInstanceStatus, names::GUEST_RUNNING, status::GuestCpu},
    launcher::{BackingImage, DiskFormat, PreparedDisk, Ready},
};
use drydock_core::{
    domain::guest_memory,
    guest::{GuestState, ObservedGuest, ReportedDomain, differs, report},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    kubelets::{Busy, whole_seconds},
    latest::Latest,
    requests::Requests,
};

/// CPU features that the guest has beyond its model, on the machine where they were recorded.
const REQUIRED: [&str; 27] = [
    "3dnow",
    "3dnowext",
    "acpi",
    "clwb",
    "cmp_legacy",
    "cmpccxadd",
    "erms",
    "fsrc",
    "fsrm",
    "fsrs",
    "fzrm",
    "hypervisor",
    "la57",
    "monitor",
    "mpx",
    "npt",
    "pks",
    "pku",
    "rdpid",
    "ss",
    "svme-addr-chk",
    "umip",
    "vaes",
    "vgif",
    "wbnoinvd",
    "x2apic",
    "xsaveerptr",
];
/// CPU features of the model that the guest lacks.
const DISABLED: [&str; 7] = [
    "fxsr_opt",
    "misalignsse",
    "nrip-save",
    "osvw",
    "topoext",
    "vme",
    "xsavec",
];

/// All agents.
pub(crate) struct Agents {
    requests: Arc<Requests>,
    latest: Arc<Latest>,
    busy: Busy,
    domain: ReportedDomain,
    ready: Ready,
}

impl Agents {
    /// Creates the agents; they do nothing before [`Self::run`].
    pub(crate) fn new(requests: &Arc<Requests>, latest: &Arc<Latest>) -> Self {
        Self {
            requests: Arc::clone(requests),
            latest: Arc::clone(latest),
            busy: Busy::default(),
            domain: domain(),
            ready: ready(),
        }
    }

    /// Reports the state of all guests forever.
    pub(crate) async fn run(self: &Arc<Self>) {
        let (mut instances, mut pods) = (self.latest.instances.subscribe(), self.latest.pods.subscribe());
        loop {
            let instance = tokio::select! {
                changed = instances.recv() => changed,
                changed = pods.recv() => changed.map(|pod| self.latest.instance_of(&pod).unwrap_or_default()),
            };
            match instance {
                Ok(uid) => self.reconcile(&uid),
                Err(_) => return,
            }
        }
    }

    fn reconcile(self: &Arc<Self>, uid: &str) {
        if !self.busy.begin(uid) {
            return;
        }
        let (agents, uid) = (Arc::clone(self), uid.to_owned());
        tokio::spawn(async move {
            loop {
                match agents.work(&uid).await {
                    Ok(()) => {}
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                    Err(error) => eprintln!("a simulated agent failed: {error}"),
                }
                if !agents.busy.again(&uid) {
                    return;
                }
            }
        });
    }

    async fn work(&self, uid: &str) -> kube::Result<()> {
        let Some(instance) = self.latest.instances.get(uid) else {
            return Ok(());
        };
        let status = instance.status.clone().unwrap_or_default();
        let (Some(node), Some(Phase::Scheduled | Phase::Running)) = (&status.node_name, status.phase) else {
            return Ok(());
        };
        let Some(pod) = self.latest.pod_on(uid, node) else {
            return Ok(());
        };
        let domain = ReportedDomain {
            memory: guest_memory(&instance.spec).ok(),
            ..self.domain.clone()
        };
        let wanted = report(&ObservedGuest {
            now: whole_seconds(),
            instance: &instance,
            pod: &pod,
            ready: &self.ready,
            domain: &domain,
            readiness: None,
            targets: &[
                ("containerdisk".into(), "vda".into()),
                ("cloudinitdisk".into(), "vdb".into()),
            ],
            host_model_known: true,
        });
        if differs(&status, &wanted) {
            self.write_status(node, &instance, &wanted).await?;
        }
        open_gate(&self.requests, &self.latest, node, &pod).await
    }

    async fn write_status(
        &self,
        node: &str,
        instance: &VirtualMachineInstance,
        status: &VirtualMachineInstanceStatus,
    ) -> kube::Result<()> {
        let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
        let patch = Patch::Apply(json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "uid": instance.uid(), "resourceVersion": instance.resource_version()},
            "status": status,
        }));
        let parameters = PatchParams::apply(AGENT_FIELD_MANAGER).force();
        let mut response: VirtualMachineInstance = self
            .requests
            .agent_patches_status(node, (&namespace, &name), &parameters, &patch)
            .await?;
        response.managed_fields_mut().clear();
        self.latest.instances.store_response(response);
        Ok(())
    }
}

/// Opens the readiness gate of a pod in which a guest runs.
pub(crate) async fn open_gate(requests: &Requests, latest: &Latest, node: &str, pod: &Pod) -> kube::Result<()> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let open = conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == GUEST_RUNNING && condition.status == "True");
    if open {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": pod.uid()},
        "status": {"conditions": [{"type": GUEST_RUNNING, "status": "True", "lastTransitionTime": whole_seconds()}]},
    }));
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let mut response: Pod = requests
        .agent_patches_status(node, (&namespace, &name), &PatchParams::default(), &patch)
        .await?;
    response.managed_fields_mut().clear();
    latest.pods.store_response(response);
    Ok(())
}

/// Returns the domain of every guest, without its memory.
fn domain() -> ReportedDomain {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    ReportedDomain {
        state: GuestState::Running,
        cpu: Some(GuestCpu {
            model: "EPYC".into(),
            vendor: Some("AMD".into()),
            required: names(&REQUIRED),
            disabled: names(&DISABLED),
            ..GuestCpu::default()
        }),
        machine: Some("pc-q35-10.0".into()),
        virt_type: "qemu".into(),
        memory: None,
        qemu_version: Some("10.0.13".into()),
        libvirt_version: Some("11.3.0".into()),
        agent: None,
        is_thawed: false,
        credentials: None,
    }
}

/// Returns the report of a launcher about its prepared disks, which is the same for all launchers.
fn ready() -> Ready {
    let disk = |name: &str, virtual_size, backing| PreparedDisk {
        name: name.into(),
        path: format!("/var/lib/drydock/disks/{name}"),
        format: DiskFormat::Qcow2,
        virtual_size,
        backing,
    };
    let image = BackingImage {
        path: "/images/containerdisk/disk/disk.img".into(),
        format: DiskFormat::Qcow2,
        virtual_size: 64 << 20,
    };
    Ready {
        disks: vec![
            disk("containerdisk", 64 << 20, Some(image)),
            disk("cloudinitdisk", 1 << 20, None),
        ],
        addresses: Vec::new(),
        post_copy: false,
        probes_readiness: false,
    }
}
