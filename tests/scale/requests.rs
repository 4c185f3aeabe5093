//! Requests to the API server: as the administrator for kubelets, and as the agent of a node for agents.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result};
use kube::{
    Client, Config, Resource,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::Request,
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The agents' service account, as RBAC and admission policies name it.
const AGENT: &str = "system:serviceaccount:drydock:drydock-agent";
const GROUPS: [&str; 3] = [
    "system:serviceaccounts",
    "system:serviceaccounts:drydock",
    "system:authenticated",
];

/// The connection to the API server, and the number of requests.
pub(crate) struct Requests {
    /// The administrator's client.
    pub(crate) client: Client,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Requests {
    /// Connects as the administrator.
    pub(crate) async fn open(kubeconfig: &Path) -> Result<Self> {
        let read = Kubeconfig::read_from(kubeconfig).context("the kubeconfig")?;
        let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        Ok(Self {
            client: Client::try_from(config)?,
            counts: Mutex::default(),
        })
    }

    /// Returns the number of requests for each kind of client.
    pub(crate) fn counted(&self) -> Value {
        json!(*self.counts.lock())
    }

    /// Counts a request of a kubelet or agent.
    pub(crate) fn count(&self, who: &'static str) {
        let mut counts = self.counts.lock();
        *counts.entry(who).or_default() += 1;
    }

    /// Patches the status of an object as the agent of a node.
    pub(crate) async fn agent_patches_status<K>(
        &self,
        node: &str,
        (namespace, name): (&str, &str),
        parameters: &PatchParams,
        patch: &Patch<Value>,
    ) -> kube::Result<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = Request::new(K::url_path(&(), Some(namespace)));
        let request = request
            .patch_subresource("status", name, parameters, patch)
            .map_err(kube::Error::BuildRequest)?;
        self.as_agent(node, request).await
    }

    /// Creates an object as the agent of a node.
    pub(crate) async fn agent_creates<K>(&self, node: &str, namespace: &str, object: &K) -> kube::Result<Value>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = Request::new(K::url_path(&(), Some(namespace)));
        let request = request
            .create(&PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        self.as_agent(node, request).await
    }

    async fn as_agent<K: DeserializeOwned>(&self, node: &str, mut request: AgentRequest) -> kube::Result<K> {
        let headers = request.headers_mut();
        let mut add = |name: &'static str, value: &str| {
            if let Ok(value) = value.parse() {
                headers.append(name, value);
            }
        };
        add("impersonate-user", AGENT);
        for group in GROUPS {
            add("impersonate-group", group);
        }
        add("impersonate-extra-authentication.kubernetes.io%2fnode-name", node);
        self.count("agents");
        self.client.request(request).await
    }
}

/// The type of requests that agents send.
type AgentRequest = http::Request<Vec<u8>>;
