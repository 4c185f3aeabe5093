//! The objects that a report is derived from.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use drydock_api::{
    HyperConverged, Hypervisor,
    hyperconverged::EvictionStrategy,
    kubevirt::{
        Phase, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPhase,
        names::CREATED_BY,
    },
    maintenance::{Group, NodeMaintenance},
};
use drydock_core::{
    configuration::{Configuration, gathering::sources, resolve, selection::NAMESPACES},
    drain::{estimate::DrainRate, guest_steps::memory},
    eviction::strategy,
    launcher_pod::MIGRATION_UID,
    migratable,
    minimum_cpu::{Minimum, ReportedMinimum},
    placement::{
        self, BoundVolume, Neighbors, Newcomer, NodeRoom, NodeView, PodMoves, PodShare, Requirements, Rules,
        room::yields_to,
    },
};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use serde::Serialize;

/// Objects that were read at about the same time. They are shared, so that a cache can provide them without a copy.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time at which the objects were read.
    pub at: Timestamp,
    /// All nodes.
    pub nodes: Vec<Arc<Node>>,
    /// Reports of the nodes' agents.
    pub hypervisors: Vec<Arc<Hypervisor>>,
    /// All pods.
    pub pods: Vec<Arc<Pod>>,
    /// All instances.
    pub instances: Vec<Arc<VirtualMachineInstance>>,
    /// All virtual machines.
    pub machines: Vec<Arc<VirtualMachine>>,
    /// All migrations.
    pub migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
    /// All PodDisruptionBudgets.
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
    /// All PersistentVolumeClaims.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// All PersistentVolumes.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// ConfigMaps with the legacy configuration.
    pub config_maps: Vec<Arc<ConfigMap>>,
    /// HyperConverged objects with the configuration.
    pub hyperconvergeds: Vec<Arc<HyperConverged>>,
    /// All NodeMaintenances, each with its API group.
    pub maintenances: Vec<(Group, Arc<NodeMaintenance>)>,
    /// Kinds of objects that could not be read.
    pub unread: Vec<UnreadKind>,
}

/// A kind of objects that could not be read and was therefore not considered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnreadKind {
    /// Name of the resource, such as `poddisruptionbudgets`.
    pub resource: String,
    /// Reason of the failure, such as `forbidden`.
    pub why: String,
}

impl Snapshot {
    /// Returns whether a node has this name.
    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.node(name).is_some()
    }

    /// Returns the node with this name.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|node| node.metadata.name.as_deref() == Some(name))
            .map(|node| &**node)
    }

    /// Returns the instances on a node that have not ended.
    pub(crate) fn guests_on(&self, node: &str) -> impl Iterator<Item = &Arc<VirtualMachineInstance>> {
        self.instances.iter().filter(move |instance| {
            let status = instance.status.as_ref();
            status.is_some_and(|status| {
                status.node_name.as_deref() == Some(node) && !status.phase.is_some_and(Phase::is_final)
            })
        })
    }

    /// Returns the maintenances of a node. There are several only if there is more than one object for the node.
    pub fn maintenances_of(&self, node: &str) -> impl Iterator<Item = &(Group, Arc<NodeMaintenance>)> {
        self.maintenances
            .iter()
            .filter(move |(_, maintenance)| maintenance.spec.node_name == node)
    }
}

impl UnreadKind {
    /// Returns a human-readable list: `pods (forbidden), claims (...)`.
    pub(crate) fn list(all: &[Self]) -> String {
        let all = all.iter().map(|unread| format!("{} ({})", unread.resource, unread.why));
        all.collect::<Vec<_>>().join(", ")
    }
}

/// Returns whether a migration belongs to an instance.
pub(crate) fn is_of(migration: &VirtualMachineInstanceMigration, instance: &VirtualMachineInstance) -> bool {
    migration.metadata.namespace == instance.metadata.namespace
        && instance.metadata.name.as_deref() == Some(migration.spec.vmi_name.as_str())
}

/// The snapshot with indexes and derived data.
pub(crate) struct ClusterObjects<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) configuration: Configuration,
    pub(crate) rate: Option<DrainRate>,
    minimum: Minimum,
    hypervisors: HashMap<&'a str, &'a Hypervisor>,
    pods_of: HashMap<&'a str, Vec<&'a Pod>>,
    machines: HashMap<(&'a str, &'a str), &'a VirtualMachine>,
    rooms: HashMap<&'a str, Arc<NodeRoom>>,
    neighbors: Neighbors,
}

impl<'a> ClusterObjects<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let namespaces = NAMESPACES.map(str::to_owned);
        let sources = sources(&snapshot.config_maps, &snapshot.hyperconvergeds, &namespaces);
        let configuration = resolve(sources, |_| None, None).configuration;
        let mut rooms: HashMap<&str, NodeRoom> = HashMap::new();
        let mut pods_of: HashMap<&str, Vec<&Pod>> = HashMap::new();
        let mut neighbors = Neighbors::default();
        for pod in &snapshot.pods {
            if let Some((node, share)) = PodShare::of(pod) {
                rooms.entry(node).or_default().add(&share);
            }
            neighbors.set(pod);
            if let Some(instance) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(CREATED_BY)) {
                pods_of.entry(instance).or_default().push(pod);
            }
        }
        let hypervisors = snapshot.hypervisors.iter();
        let machines = snapshot.machines.iter();
        Self {
            snapshot,
            minimum: minimum(&configuration.min_cpu_model, &snapshot.hypervisors),
            configuration,
            rate: rate(snapshot),
            hypervisors: hypervisors
                .filter_map(|hypervisor| Some((hypervisor.metadata.name.as_deref()?, &**hypervisor)))
                .collect(),
            pods_of,
            machines: machines
                .filter_map(|machine| {
                    let metadata = &machine.metadata;
                    Some(((metadata.namespace.as_deref()?, metadata.name.as_deref()?), &**machine))
                })
                .collect(),
            rooms: rooms.into_iter().map(|(node, room)| (node, Arc::new(room))).collect(),
            neighbors,
        }
    }

    /// Returns the minimum CPU model.
    pub(crate) fn minimum(&self) -> &Minimum {
        &self.minimum
    }

    /// Returns views of nodes with the requests of their pods, sorted by name.
    pub(crate) fn views(&self, nodes: &'a [Arc<Node>]) -> Vec<NodeView<'a>> {
        let known_pods = !self.snapshot.unread.iter().any(|unread| unread.resource == "pods");
        let mut views: Vec<_> = nodes
            .iter()
            .map(|node| {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                let status = self
                    .hypervisors
                    .get(name)
                    .and_then(|hypervisor| hypervisor.status.as_ref());
                let mut view = NodeView::of(node, status);
                view.room = known_pods.then(|| self.rooms.get(name).cloned().unwrap_or_default());
                view
            })
            .collect();
        views.sort_by_key(|view| view.name);
        views
    }

    /// Returns the report of the agent of a node.
    pub(crate) fn hypervisor(&self, node: &str) -> Option<&'a Hypervisor> {
        self.hypervisors.get(node).copied()
    }

    /// Returns the pods of an instance.
    pub(crate) fn pods_of(&self, instance: &VirtualMachineInstance) -> &[&'a Pod] {
        let uid = instance.metadata.uid.as_deref().unwrap_or_default();
        self.pods_of.get(uid).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the labels that the next pod of an instance will have, taken from a present pod.
    pub(crate) fn next_labels(&self, instance: &VirtualMachineInstance) -> BTreeMap<String, String> {
        let like = self.pods_of(instance).first();
        let mut labels = like.and_then(|pod| pod.metadata.labels.clone()).unwrap_or_default();
        labels.remove(MIGRATION_UID);
        labels
    }

    /// Returns the eviction strategy in force for an instance.
    pub(crate) fn strategy(&self, instance: &VirtualMachineInstance) -> EvictionStrategy {
        let metadata = &instance.metadata;
        let key = (
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        );
        strategy::in_force(
            instance,
            self.machines.get(&key).copied(),
            self.configuration.eviction_strategy,
        )
    }

    /// Returns the requirements of an instance on its next node. `source` is the present one.
    pub(crate) fn requirements(
        &self,
        instance: &VirtualMachineInstance,
        source: Option<&NodeView<'_>>,
        views: &[NodeView<'_>],
    ) -> Requirements {
        let mut needs = placement::requirements(&instance.spec, &self.configuration, &self.minimum);
        if let Some(source) = source {
            placement::lift_masks(&mut needs, source);
        }
        placement::admit_partial_models(&mut needs, views.iter().cloned());
        if let Some(source) = source {
            placement::admit_masked(&mut needs, source, views.iter().cloned());
        }
        let mut specs = self.pods_of(instance).iter().filter_map(|pod| pod.spec.as_ref());
        needs.priority = specs.next().map(yields_to);
        needs.volumes = self.bound_volumes(instance);
        needs
    }

    /// Returns the rules that the pods on these nodes impose on the node of a new pod.
    pub(crate) fn rules(&self, newcomer: &Newcomer<'_>, moves: &PodMoves, views: &[NodeView<'_>]) -> Rules {
        self.neighbors.rules(newcomer, moves, || Cow::Borrowed(views))
    }

    fn bound_volumes(&self, instance: &VirtualMachineInstance) -> Vec<BoundVolume> {
        let namespace = instance.metadata.namespace.as_deref();
        let claims = instance.spec.volumes.iter().filter_map(migratable::claim);
        claims
            .filter_map(|name| {
                let claim = self.snapshot.claims.iter().find(|claim| {
                    claim.metadata.namespace.as_deref() == namespace && claim.metadata.name.as_deref() == Some(name)
                })?;
                let volume = claim.spec.as_ref()?.volume_name.as_deref()?;
                let mut volumes = self.snapshot.volumes.iter();
                let volume = volumes.find(|other| other.metadata.name.as_deref() == Some(volume))?;
                Some(BoundVolume {
                    claim: name.to_owned(),
                    nodes: volume.spec.as_ref()?.node_affinity.as_ref()?.required.clone()?,
                })
            })
            .collect()
    }
}

/// Returns the minimum CPU model as the agents have reported it.
fn minimum(model: &str, hypervisors: &[Arc<Hypervisor>]) -> Minimum {
    let mut minimum = ReportedMinimum::new(model);
    for hypervisor in hypervisors {
        let report = hypervisor
            .status
            .as_ref()
            .and_then(|status| status.configuration.as_ref());
        if let Some(report) = report {
            minimum.add(&hypervisor.metadata.name, report);
        }
    }
    minimum.get()
}

/// Returns the rate of the successful migrations so far. Returns `None` if there is none.
fn rate(snapshot: &Snapshot) -> Option<DrainRate> {
    let mut rate = DrainRate::default();
    let has_succeeded = |migration: &&Arc<VirtualMachineInstanceMigration>| {
        let status = migration.status.as_ref();
        status.and_then(|status| status.phase) == Some(MigrationPhase::Succeeded)
    };
    for migration in snapshot.migrations.iter().filter(has_succeeded) {
        let mut instances = snapshot.instances.iter();
        let guest = instances.find(|instance| is_of(migration, instance));
        let bytes = guest.map_or(0, |guest| memory(guest));
        rate.add_migration(migration, bytes);
    }
    (rate.count > 0).then_some(rate)
}
