//! The client, the caches, the events and the refusals that all reconcilers and reviews of guests share.

use drydock_runtime::{Events, Key};
use kube::{Api, Client, Resource, core::NamespaceResourceScope};

use crate::{
    instances::Instances, launchers::Launchers, migration_rate::MigrationRate, migrations::Migrations,
    refusals::StepRefusals,
};

/// Clones share the caches.
#[derive(Clone)]
pub(crate) struct GuestContext {
    pub(crate) client: Client,
    pub(crate) instances: Instances,
    pub(crate) migrations: Migrations,
    pub(crate) launchers: Launchers,
    pub(crate) rate: MigrationRate,
    pub(crate) events: Events,
    pub(crate) refusals: StepRefusals,
}

impl GuestContext {
    /// Creates the context with these caches.
    pub(crate) fn new(
        client: Client,
        (instances, migrations, launchers): (Instances, Migrations, Launchers),
        events: Events,
        refusals: StepRefusals,
    ) -> Self {
        Self {
            rate: MigrationRate::new(instances.clone(), migrations.clone()),
            client,
            instances,
            migrations,
            launchers,
            events,
            refusals,
        }
    }

    /// Returns the API for objects in the namespace of a key.
    pub(crate) fn api<K>(&self, key: &Key) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(
            self.instances.wait_until_synced(),
            self.migrations.wait_until_synced(),
            self.launchers.wait_until_synced()
        );
    }
}

#[cfg(test)]
mod filled {
    use drydock_runtime::{
        EventMetrics, Process, Reporter,
        fake::{ApiServer, api_server},
    };

    use super::*;
    use crate::{fake_cluster::FakeCluster, nodes::Nodes, pdbs::Pdbs};

    impl GuestContext {
        /// Creates a context with empty caches and these events.
        pub(crate) fn with_events(client: Client, events: Events) -> Self {
            let launchers = Launchers::filled(&client, [], Nodes::filled(&client, []), Pdbs::filled(&client, []));
            let caches = (Instances::filled([]), Migrations::filled([]), launchers);
            Self::new(client, caches, events, StepRefusals::default())
        }

        /// Creates a context with empty caches. Returns also the API server that receives the events.
        pub(crate) fn empty(client: Client) -> (Self, ApiServer) {
            let (for_events, server) = api_server();
            let reporter = Reporter {
                component: "drydock-controller",
                instance: "test".into(),
            };
            let events = Events::start(&Process::new(), for_events, reporter, &EventMetrics::default());
            (Self::with_events(client, events), server)
        }

        /// Shows the guests, pods, PDBs and migrations of a cluster in the caches.
        pub(crate) fn show(&self, cluster: &FakeCluster) {
            self.launchers.show(cluster.all("pods"));
            self.launchers.pdbs.show(cluster.all("poddisruptionbudgets"));
            self.instances.objects.show(cluster.all("virtualmachineinstances"));
            let migrations = cluster.all("virtualmachineinstancemigrations");
            self.migrations.objects.show(migrations);
        }
    }
}
