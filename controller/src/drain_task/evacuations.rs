//! Creates the migrations of drains.

use std::collections::BTreeMap;

use drydock_api::kubevirt::{
    VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec,
    migration::MigrationPriority,
};
use drydock_core::{
    drain::guest_steps::{CIRCUMSTANCES, migration_name},
    eviction::evacuation_request,
    migration::{purpose::EVACUATION, queue::ORDER},
};
use drydock_runtime::Key;
use kube::{Api, ResourceExt, api::PostParams};
use tracing::warn;

/// Inputs of a migration away from a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvacuationMigration<'a> {
    /// Instance with its evacuation request.
    pub(super) instance: &'a VirtualMachineInstance,
    /// Node to leave.
    pub(super) node: &'a str,
    /// Priority of the migration in the queue.
    pub(super) priority: MigrationPriority,
    /// Position of the migration in the plan.
    pub(super) order: usize,
    /// Digest of the circumstances that determine the outcome of the migration.
    pub(super) circumstances: &'a str,
}

/// Result of creating a migration.
#[derive(Clone, Debug)]
pub(super) enum CreationOutcome {
    /// The migration was created.
    Made(VirtualMachineInstanceMigration),
    /// The migration had been created before; `None` if it has been deleted since.
    WasMade(Option<VirtualMachineInstanceMigration>),
}

impl EvacuationMigration<'_> {
    /// Creates the migration unless this attempt already has one.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn create(self, api: &Api<VirtualMachineInstanceMigration>) -> kube::Result<CreationOutcome> {
        let mut take = 0;
        loop {
            let migration = self.migration(take);
            let name = migration.name_any();
            match api.create(&PostParams::default(), &migration).await {
                Ok(made) => return Ok(CreationOutcome::Made(made)),
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(error),
            }
            // The migration was created before and the watch has not shown it yet, or another instance's migration has
            // the same name.
            match api.get_opt(&name).await? {
                Some(other) if other.spec.vmi_name != migration.spec.vmi_name => {
                    warn!(
                        migration = %Key::of(&other),
                        migration_uid = other.metadata.uid,
                        vmi = other.spec.vmi_name,
                        "a migration of another instance has the same name, using another name"
                    );
                    take += 1;
                }
                found => return Ok(CreationOutcome::WasMade(found)),
            }
        }
    }

    /// Builds the migration. `take` is the number of names that are taken by migrations of other instances.
    fn migration(self, take: u32) -> VirtualMachineInstanceMigration {
        let mut migration = VirtualMachineInstanceMigration::new(
            &migration_name(self.instance, evacuation_request::evacuation(self.instance), take),
            VirtualMachineInstanceMigrationSpec {
                vmi_name: self.instance.name_any(),
                priority: Some(self.priority),
                ..VirtualMachineInstanceMigrationSpec::default()
            },
        );
        migration.metadata.namespace = self.instance.namespace();
        migration.metadata.annotations = Some(BTreeMap::from([
            (EVACUATION.to_owned(), self.node.to_owned()),
            (ORDER.to_owned(), self.order.to_string()),
            (CIRCUMSTANCES.to_owned(), self.circumstances.to_owned()),
        ]));
        migration
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::kubevirt::status::DrainRequest;
    use drydock_runtime::fake::{ApiServer, api_server};
    use http::Method;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    /// Creates a migration. Each requested name is either free (`None`) or has a migration of the given instance.
    async fn made(taken: &[Option<&str>]) -> (CreationOutcome, Vec<String>) {
        let instance: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "db", "uid": "1"},
            "spec": {"domain": {"devices": {}}},
        }))
        .unwrap();
        let requester = evacuation_request::new(DrainRequest::Taint, Timestamp::UNIX_EPOCH);
        let instance = evacuation_request::marked(&instance, "a", &requester);
        let (client, mut server) = api_server();
        let api = Api::namespaced(client, "shop");
        let evacuation = EvacuationMigration {
            instance: &instance,
            node: "a",
            priority: MigrationPriority::SystemCritical,
            order: 3,
            circumstances: "c",
        };
        let (made, names) = tokio::join!(evacuation.create(&api), serve_creations(&mut server, taken));
        (made.unwrap(), names)
    }

    async fn serve_creations(server: &mut ApiServer, taken: &[Option<&str>]) -> Vec<String> {
        let mut names = Vec::new();
        for taken in taken {
            let request = server.next_request().await;
            assert_eq!(request.method, Method::POST);
            let mut body: Value = request.body.clone();
            assert_eq!(body["spec"]["vmiName"], "db");
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            match taken {
                None => request.with(&body),
                Some(of) => {
                    request.refuse(409, "AlreadyExists");
                    let request = server.next_request().await;
                    assert_eq!(request.method, Method::GET);
                    assert!(request.path().ends_with(&name), "{}", request.path());
                    body["spec"]["vmiName"] = json!(of);
                    request.with(&body);
                }
            }
            names.push(name);
        }
        names
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_has_one_migration_and_takes_an_unused_name() {
        let name = |outcome: &CreationOutcome| match outcome {
            CreationOutcome::Made(made) => made.metadata.name.clone(),
            CreationOutcome::WasMade(_) => None,
        };
        let (one, names) = made(&[None]).await;
        assert_eq!(name(&one).as_ref(), names.first());
        let (again, same) = made(&[Some("db")]).await;
        assert!(matches!(again, CreationOutcome::WasMade(Some(found)) if Some(&found.name_any()) == names.first()));
        assert_eq!(same, names);
        let (other, taken) = made(&[Some("cache"), Some("web"), None]).await;
        assert_eq!(taken[0], names[0]);
        assert!(taken[1] != taken[0] && taken[2] != taken[1] && taken[2] != taken[0]);
        assert_eq!(name(&other).as_ref(), taken.last());
    }
}
