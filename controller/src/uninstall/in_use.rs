//! The objects that still need Drydock, according to lists from the API server.

use std::fmt::Debug;

use drydock_api::{
    kubevirt::{
        VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet,
        names::{APP, VIRT_LAUNCHER},
    },
    maintenance::{self, Group, NodeMaintenance},
};
use drydock_core::removal::{RemainingObjects, in_use};
use drydock_runtime::Key;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use super::{Uninstall, UninstallError};

/// Maximum number of objects read per kind. The API server reports the number of further objects.
const READ: u32 = 100;

impl Uninstall {
    /// Fails if other objects need Drydock.
    pub(super) async fn refuse_if_in_use(&self) -> Result<(), UninstallError> {
        let left = self
            .persist("list virtual machines", async || self.left().await)
            .await?;
        in_use(&left).map_or(Ok(()), |what| Err(UninstallError::InUse(what)))
    }

    async fn left(&self) -> kube::Result<Vec<RemainingObjects>> {
        let client = || self.client.clone();
        let guests = ListParams::default().labels(&format!("{APP}={VIRT_LAUNCHER}"));
        let all = ListParams::default();
        let mut left = vec![
            listed("VirtualMachine", &Api::<VirtualMachine>::all(client()), &all).await?,
            listed(
                "VirtualMachineInstanceReplicaSet",
                &Api::<VirtualMachineInstanceReplicaSet>::all(client()),
                &all,
            )
            .await?,
            listed(
                "VirtualMachineInstance",
                &Api::<VirtualMachineInstance>::all(client()),
                &all,
            )
            .await?,
            // A pod without its instance still runs a guest. This happens if finalizers were removed manually.
            listed("virt-launcher Pod", &Api::<Pod>::all(client()), &guests).await?,
        ];
        for group in Group::ALL {
            let api = Api::<NodeMaintenance>::all_with(client(), &group);
            left.push(listed(maintenance::KIND, &api, &all).await?);
        }
        Ok(left)
    }
}

/// Returns the objects of a kind. There are none if the API server does not serve the kind.
async fn listed<K>(kind: &'static str, api: &Api<K>, which: &ListParams) -> kube::Result<RemainingObjects>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let list = match api.list_metadata(&which.clone().limit(READ)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(RemainingObjects::all(kind, Vec::new())),
        list => list?,
    };
    let names: Vec<String> = list.items.iter().map(|object| Key::of(object).to_string()).collect();
    let more = list.metadata.remaining_item_count.unwrap_or_default();
    Ok(RemainingObjects {
        kind,
        count: Some(names.len() + usize::try_from(more).unwrap_or_default()),
        names,
    })
}
