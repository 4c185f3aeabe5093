//! The requests to the API server that operations need.

use axum::{
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
};
use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration},
};
use drydock_core::{
    drain::NodeMarks,
    machine::owns,
    subresources::{
        Effect, GROUP, GroupResource, JsonPatch, PatchedPart, SubresourceError, SubresourceOperation,
        SubresourceTarget, evacuation,
        front_proxy::RequestUser,
        machine_commands::{self, FoundMachine, MIGRATION_NAME_PREFIX},
        options::{self, is_dry_run, read},
    },
};
use drydock_runtime::chain;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    core::v1::Node,
};
use kube::{
    Api, Client, Error,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{agents::Agents, reply::json_response};
use crate::{configuration_in_force::ConfigurationInForce, evacuation_requests};

/// Status code of the API server for a JSON patch with a failed test.
const UNPROCESSABLE: u16 = 422;
/// KubeVirt's status code for a request that a controller will carry out.
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;

/// Sends the requests that operations need.
pub(super) struct ApiCalls {
    client: Client,
    configuration: ConfigurationInForce,
    pub(super) agents: Agents,
}

/// A machine as read from the API server.
pub(super) struct Read {
    written: Value,
    pub(super) machine: VirtualMachine,
}

impl ApiCalls {
    pub(super) fn new(client: Client, configuration: ConfigurationInForce, agents: Agents) -> Self {
        Self {
            client,
            configuration,
            agents,
        }
    }

    /// Returns the API server's version, or the reason why it does not respond.
    pub(super) async fn api_server_version(&self) -> Result<Value, String> {
        let version = self.client.apiserver_version().await;
        version
            .map(|version| json!(version))
            .map_err(|error| chain(&error).to_string())
    }

    /// Returns the reason why the user may not use this verb on the object. Returns `None` if the user may.
    pub(super) async fn review(
        &self,
        user: &RequestUser,
        verb: &str,
        target: &SubresourceTarget,
    ) -> Result<Option<String>, SubresourceError> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(target.namespace.clone()),
                    verb: Some(verb.into()),
                    group: Some(GROUP.into()),
                    version: Some(target.version.into()),
                    resource: Some(target.resource.plural().into()),
                    subresource: some(&target.subresource),
                    name: some(&target.name),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        let reviewed = api.create(&PostParams::default(), &review).await.map_err(internal)?;
        let status = reviewed.status.unwrap_or_default();
        Ok(match status.allowed && status.denied != Some(true) {
            true => None,
            false => Some(status.reason.unwrap_or_default()),
        })
    }

    /// Executes an operation, except connections to guests.
    pub(super) async fn execute(
        &self,
        operation: SubresourceOperation,
        target: &SubresourceTarget,
        body: &[u8],
    ) -> Result<Response, SubresourceError> {
        info!(
            operation = operation.as_str(),
            namespace = target.namespace,
            name = target.name,
            "subresource requested"
        );
        match operation {
            SubresourceOperation::Start => {
                let options: options::StartOptions = read(body)?;
                self.change(target, options.dry_run.as_deref(), |found| {
                    machine_commands::start(found, &options)
                })
                .await
            }
            SubresourceOperation::Stop => {
                let options: options::StopOptions = read(body)?;
                self.change(target, options.dry_run.as_deref(), |found| {
                    machine_commands::stop(found, &options)
                })
                .await
            }
            SubresourceOperation::Restart => {
                let options: options::Restart = read(body)?;
                self.change(target, options.dry_run.as_deref(), |found| {
                    machine_commands::restart(found, &options)
                })
                .await
            }
            SubresourceOperation::Migrate => self.migrate(target, &read(body)?).await,
            SubresourceOperation::ExpandSpec => {
                let written = self.machine(target).await?.written;
                let expanded = machine_commands::expand(written, &target.namespace)?;
                Ok(json_response(StatusCode::OK, &expanded))
            }
            SubresourceOperation::ExpandGivenSpec => {
                let given: Option<Value> = read(body)?;
                let expanded = machine_commands::expand(given.unwrap_or_default(), &target.namespace)?;
                Ok(json_response(StatusCode::OK, &expanded))
            }
            SubresourceOperation::CancelEvacuationOfMachine | SubresourceOperation::CancelEvacuation => {
                self.cancel_evacuation(target, &read(body)?).await
            }
            SubresourceOperation::Command(command) => self.command(target, command, body).await,
            SubresourceOperation::Freeze => self.freeze(target, body).await,
            SubresourceOperation::Report(report) => self.report(target, report).await,
            SubresourceOperation::Stream(_) | SubresourceOperation::PortForward => {
                Err(SubresourceError::method_not_allowed("GET"))
            }
        }
    }

    fn machines(&self, target: &SubresourceTarget) -> Api<VirtualMachine> {
        Api::namespaced(self.client.clone(), &target.namespace)
    }

    fn instances(&self, target: &SubresourceTarget) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client.clone(), &target.namespace)
    }

    pub(super) async fn machine(&self, target: &SubresourceTarget) -> Result<Read, SubresourceError> {
        let path = format!(
            "/apis/kubevirt.io/v1/namespaces/{}/virtualmachines/{}",
            target.namespace, target.name
        );
        let request = Request::get(path)
            .body(Vec::new())
            .map_err(|error| SubresourceError::bad_request(error.to_string()))?;
        match self.client.request::<Value>(request).await {
            Ok(written) => match serde_json::from_value(written.clone()) {
                Ok(machine) => Ok(Read { written, machine }),
                Err(error) => Err(SubresourceError::internal(error.to_string())),
            },
            Err(Error::Api(status)) if status.is_not_found() => {
                Err(SubresourceError::not_found(GroupResource::Machine, &target.name))
            }
            Err(error) => Err(internal(error)),
        }
    }

    pub(super) async fn instance(
        &self,
        target: &SubresourceTarget,
    ) -> Result<Option<VirtualMachineInstance>, SubresourceError> {
        self.instances(target).get_opt(&target.name).await.map_err(internal)
    }

    /// Reads the target instance, or the instance of the target machine.
    ///
    /// # Errors
    /// If the instance does not exist, or does not belong to the machine.
    pub(super) async fn started_instance(
        &self,
        target: &SubresourceTarget,
    ) -> Result<VirtualMachineInstance, SubresourceError> {
        let mut machine = None;
        if target.resource == GroupResource::Machine {
            let read = self.machine(target).await?.machine;
            evacuation::is_started(&read)?;
            machine = Some(read);
        }
        let found = self.instance(target).await?;
        let instance = found.ok_or_else(|| SubresourceError::not_found(GroupResource::Instance, &target.name))?;
        if machine.is_some_and(|machine| !owns(&machine, &instance)) {
            let why = format!("the instance {:?} does not belong to the virtual machine", target.name);
            return Err(SubresourceError::internal(why));
        }
        Ok(instance)
    }

    /// Changes a machine according to the decision of `decide`.
    async fn change(
        &self,
        target: &SubresourceTarget,
        dry_run: Option<&[String]>,
        decide: impl Fn(&FoundMachine<'_>) -> Result<Effect, SubresourceError>,
    ) -> Result<Response, SubresourceError> {
        let dry_run = is_dry_run(dry_run)?;
        let read = self.machine(target).await?;
        let instance = self.instance(target).await?;
        let Effect(patches) = decide(&FoundMachine::new(&read.machine, &read.written, instance.as_ref()))?;
        for (index, patch) in patches.iter().enumerate() {
            if let Err(error) = self.patch(target, patch, &patch.operations, dry_run).await {
                // A patch that may have been applied is also undone.
                let applied = index + usize::from(may_be_applied(&error));
                for done in patches[..applied].iter().rev().filter(|_| !dry_run) {
                    self.undo(target, done).await;
                }
                return Err(self.failure(target, patch, error).await);
            }
        }
        Ok(ACCEPTED.into_response())
    }

    async fn patch(
        &self,
        target: &SubresourceTarget,
        patch: &JsonPatch,
        operations: &Value,
        dry_run: bool,
    ) -> kube::Result<()> {
        let operations: json_patch::Patch = serde_json::from_value(operations.clone()).map_err(Error::SerdeError)?;
        let parameters = PatchParams {
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
            dry_run,
            ..PatchParams::default()
        };
        let (name, operations) = (&target.name, Patch::<()>::Json(operations));
        match patch.written {
            PatchedPart::Machine => drop(self.machines(target).patch(name, &parameters, &operations).await?),
            PatchedPart::MachineStatus => drop(
                self.machines(target)
                    .patch_status(name, &parameters, &operations)
                    .await?,
            ),
            PatchedPart::Instance => drop(self.instances(target).patch(name, &parameters, &operations).await?),
        }
        Ok(())
    }

    async fn undo(&self, target: &SubresourceTarget, patch: &JsonPatch) {
        let Some(operations) = &patch.undo else { return };
        match self.patch(target, patch, operations, false).await {
            Ok(()) => {}
            // The change was not applied, or another writer has changed the value since.
            Err(Error::Api(status)) if status.code == UNPROCESSABLE => {}
            Err(error) => warn!(
                namespace = target.namespace,
                name = target.name,
                error = %chain(&error),
                "could not revert a change after a later change failed"
            ),
        }
    }

    /// Converts the error of a patch that was not applied. It becomes a conflict if the values that the decision was
    /// based on have changed.
    async fn failure(&self, target: &SubresourceTarget, patch: &JsonPatch, error: Error) -> SubresourceError {
        let unprocessable = matches!(&error, Error::Api(status) if status.code == UNPROCESSABLE);
        if unprocessable && patch.written != PatchedPart::Instance {
            match self.machine(target).await {
                Ok(now) if !holds(&patch.operations, &now.written) => {
                    let why =
                        "the object has been modified; please apply your changes to the latest version and try again";
                    return SubresourceError::conflict(GroupResource::Machine, &target.name, why);
                }
                Ok(_) => {}
                Err(failure) => return failure,
            }
        }
        internal(error)
    }

    async fn migrate(
        &self,
        target: &SubresourceTarget,
        options: &options::Migrate,
    ) -> Result<Response, SubresourceError> {
        let dry_run = is_dry_run(options.dry_run.as_deref())?;
        self.machine(target).await?;
        let instance = self.instance(target).await?;
        let migration = VirtualMachineInstanceMigration {
            metadata: ObjectMeta {
                generate_name: Some(MIGRATION_NAME_PREFIX.into()),
                ..ObjectMeta::default()
            },
            spec: machine_commands::migrate(&target.name, instance.as_ref(), options)?,
            status: None,
        };
        let parameters = PostParams {
            dry_run,
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
        };
        let api = Api::<VirtualMachineInstanceMigration>::namespaced(self.client.clone(), &target.namespace);
        api.create(&parameters, &migration).await.map_err(internal)?;
        Ok(ACCEPTED.into_response())
    }

    async fn cancel_evacuation(
        &self,
        target: &SubresourceTarget,
        options: &options::CancelEvacuation,
    ) -> Result<Response, SubresourceError> {
        let dry_run = is_dry_run(options.dry_run.as_deref())?;
        let instance = self.started_instance(target).await?;
        let requested = options.evacuation_node_name.as_deref().unwrap_or_default();
        let configuration = self.configuration.get();
        let key = &configuration.migrations.drain_taint_key;
        let node = match evacuation::node(&instance, requested) {
            "" => None,
            node => {
                let nodes = Api::<Node>::all(self.client.clone());
                nodes.get_opt(node).await.map_err(internal)?
            }
        };
        let marks = node.map_or_else(NodeMarks::default, |node| NodeMarks::of(&node, key));
        if evacuation::cancel(&instance, requested, (key, marks))? && !dry_run {
            evacuation_requests::remove_from(&self.instances(target), &instance)
                .await
                .map_err(internal)?;
        }
        Ok(StatusCode::OK.into_response())
    }
}

/// Returns whether all tests of a patch succeed. A test for null also succeeds if there is no value.
fn holds(operations: &Value, object: &Value) -> bool {
    let tests = operations.as_array().into_iter().flatten();
    tests.filter(|operation| operation["op"] == "test").all(|test| {
        let path = test["path"].as_str().unwrap_or_default();
        object.pointer(path).unwrap_or(&Value::Null) == &test["value"]
    })
}

/// Returns whether a patch that failed with this error may have been applied, because the response was lost or the API
/// server itself failed.
fn may_be_applied(error: &Error) -> bool {
    !matches!(error, Error::Api(status) if (400..500).contains(&status.code))
}

/// Converts an error of the API server to an internal error.
fn internal(error: Error) -> SubresourceError {
    match error {
        Error::Api(status) => SubresourceError::internal(&status.message),
        error => SubresourceError::internal(chain(&error).to_string()),
    }
}
