//! The embedded cluster, through a client and the commands of `hack/`.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use drydock_api::{HyperConverged, Hypervisor, kubevirt::VirtualMachineInstance, labels};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Pod},
    events::v1::Event,
};
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    documents,
    guests::NAMESPACE,
    watching::{Stopwatch, until_ok, until_some},
};

/// The legacy ConfigMap.
const CONFIG_MAP: &str = "kubevirt-config";

/// The description of a cluster that `hack/up` writes.
#[derive(Debug, Deserialize)]
struct Description {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    audit_log: PathBuf,
    registry: String,
    nodes: Vec<NodeMachine>,
}

/// The description of a node.
#[derive(Debug, Deserialize)]
struct NodeMachine {
    name: String,
    /// Pid of the process whose namespaces are those of the node.
    pid: Option<u32>,
}

impl Description {
    /// Returns the administrator's client configuration.
    async fn config(&self) -> Result<Config> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        Ok(config)
    }

    /// Reads the current description of the cluster, since a restarted node has a new process.
    fn read(cluster: &str) -> Result<Self> {
        let state = setting("DRYDOCK_STATE").unwrap_or_else(|| "/var/lib/drydock-embedded".into());
        let file = Path::new(&state).join(cluster).join("cluster.json");
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| file.display().to_string())
    }
}

/// The cluster on which the tests run.
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// A client with all rights.
    pub client: Client,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    description: Description,
}

/// Returns the path of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Cluster {
    /// Returns the cluster that `hack/test` started, once Drydock's webhooks respond.
    ///
    /// # Errors
    /// If no cluster was started, or Drydock is not ready on it.
    pub async fn connect() -> Result<Self> {
        let name =
            setting("DRYDOCK_TEST_CLUSTER").context("DRYDOCK_TEST_CLUSTER is not set: use `hack/test cluster`")?;
        let description = Description::read(&name)?;
        let client = Client::try_from(description.config().await?)?;
        let listed = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
        let nodes = listed.items.into_iter().filter_map(|node| node.metadata.name).collect();
        let cluster = Self {
            name,
            client,
            nodes,
            description,
        };
        cluster.until_admitting().await?;
        Ok(cluster)
    }

    /// Waits until the controller's webhooks can be reached.
    ///
    /// If a previous test has left all nodes unresponsive, none of the controller's pods counts as ready for a moment.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_admitting(&self) -> Result<()> {
        let instance: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "admitted"},
            "spec": {"domain": {"resources": {"requests": {"memory": "96Mi"}}, "devices": {}}},
        }))?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        until_ok("the controller's webhooks to respond", || async {
            match self.instances().create(&dry_run, &instance).await {
                Err(kube::Error::Api(status)) if status.code >= 500 => Ok(Err(status.message)),
                // A rejection is a response as well.
                Ok(_) | Err(kube::Error::Api(_)) => Ok(Ok(())),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Returns the first node.
    pub fn first(&self) -> &str {
        self.nodes.first().map_or("", String::as_str)
    }

    /// Returns the second node.
    pub fn second(&self) -> &str {
        self.nodes.get(1).map_or("", String::as_str)
    }

    /// Returns the host's address on the cluster's network, which pods and guests can reach.
    ///
    /// # Errors
    /// If the kubeconfig does not contain it.
    pub fn host_address(&self) -> Result<String> {
        let kubeconfig = Kubeconfig::read_from(&self.description.kubeconfig)?;
        let server = kubeconfig
            .clusters
            .iter()
            .find_map(|cluster| cluster.cluster.as_ref()?.server.clone())
            .context("no server in the kubeconfig")?;
        let rest = server.strip_prefix("https://").context("the server URL is not https")?;
        Ok(rest.rsplit_once(':').map_or(rest, |(host, _)| host).to_owned())
    }

    /// Returns a client that sends each request once: the default client retries responses such as 429 for minutes.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read.
    pub async fn impatient(&self) -> Result<Client> {
        let mut config = self.description.config().await?;
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Returns the path of the API server's audit log of Drydock's service accounts.
    pub fn audit_log(&self) -> &Path {
        &self.description.audit_log
    }

    /// Returns the audit logs of this cluster and of those on which other tests ran.
    ///
    /// # Errors
    /// If a cluster or its log cannot be read.
    pub fn all_audit_logs(&self) -> Result<String> {
        let names = setting("DRYDOCK_TEST_CLUSTERS").unwrap_or_else(|| self.name.clone());
        names
            .split(',')
            .map(|name| {
                let log = Description::read(name)?.audit_log;
                std::fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))
            })
            .collect()
    }

    /// Makes the cluster's registry serve another image under the name `repository`; see `tests/oracle/retag.py`.
    ///
    /// # Errors
    /// If the script fails, with its output.
    pub fn retag(&self, repository: &str, what: &[&str]) -> Result<()> {
        let script = self::repository().join("tests/oracle/retag.py");
        let mut command = Command::new("python3");
        command
            .arg("-B")
            .arg(script)
            .args([&self.description.registry, repository])
            .args(what);
        output(&mut command).map(drop)
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.description.kubeconfig
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.description.kubectl);
        command.env("KUBECONFIG", &self.description.kubeconfig).args(arguments);
        output(&mut command)
    }

    /// Runs the command of a documentation page that starts with `beginning`, as a user does, and returns its output.
    ///
    /// The names in `replaced` are replaced in the command.
    ///
    /// # Errors
    /// If the page contains no such command, or if the command fails, with its output.
    pub fn documented(&self, page: &str, beginning: &str, replaced: &[(&str, &str)]) -> Result<String> {
        let text = std::fs::read_to_string(repository().join(page)).with_context(|| page.to_owned())?;
        let script = documents::command(&text, beginning, replaced).with_context(|| page.to_owned())?;
        let programs = self.description.kubectl.parent().context("kubectl has no folder")?;
        let path = format!("{}:{}", programs.display(), setting("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command
            .env("KUBECONFIG", &self.description.kubeconfig)
            .env("PATH", path);
        output(command.args(["-ec", &script]))
    }

    /// Runs a script in a guest's pod that ends the guest.
    ///
    /// The pod ends with its guest. If the pod ends before the script, the script is killed, which is no error.
    ///
    /// # Errors
    /// If the script fails for another reason, with its output.
    pub fn end_guest_by(&self, pod: &str, script: &str) -> Result<()> {
        match self.kubectl(&["exec", pod, "--", "sh", "-c", script]) {
            Err(error) if format!("{error:#}").contains("command terminated with exit code 137") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Starts kubectl in the background.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn kubectl_begun(&self, arguments: &[&str]) -> Result<Begun> {
        let mut command = Command::new(&self.description.kubectl);
        command.env("KUBECONFIG", &self.description.kubeconfig).args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(Begun(Some(command.spawn().context("kubectl")?)))
    }

    /// Runs kubectl with a text as its input.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let file = env::temp_dir().join(format!("drydock-test-{}.yaml", std::process::id()));
        std::fs::write(&file, input)?;
        let path = file.to_string_lossy().into_owned();
        let mut all = arguments.to_vec();
        all.extend(["-f", &path]);
        let result = self.kubectl(&all);
        std::fs::remove_file(&file)?;
        result
    }

    /// Runs a verb of the embedded cluster, such as `restart kube-apiserver`.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub fn embedded(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("python3");
        command
            .current_dir(repository())
            .env("PYTHONPATH", repository().join("hack"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .args(["-m", "embedded", verb, "--name", &self.name])
            .args(arguments);
        output(&mut command)
    }

    /// Restarts the kubelets after an outage of the API server.
    ///
    /// Otherwise a kubelet may wait for up to a minute before it watches pods again: the back-off of client-go's
    /// reflector grows to 30 s, and its jitter doubles that.
    ///
    /// # Errors
    /// If a kubelet does not start.
    pub fn restart_kubelets(&self) -> Result<()> {
        for node in &self.nodes {
            self.embedded("restart", &[&format!("kubelet.{node}")])?;
        }
        Ok(())
    }

    /// Runs a shell command in all namespaces of a node.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub fn on_node(&self, node: &str, script: &str) -> Result<String> {
        output(&mut self.shell_on_node(node, script)?)
    }

    /// Returns a shell command that runs in all namespaces of a node, like the verb `exec` of the embedded cluster but
    /// faster.
    ///
    /// # Errors
    /// If the node does not exist, or is off.
    pub fn shell_on_node(&self, node: &str, script: &str) -> Result<Command> {
        let description = Description::read(&self.name)?;
        let machine = description.nodes.into_iter().find(|machine| machine.name == node);
        let machine = machine.with_context(|| format!("node {node} does not exist"))?;
        let pid = machine.pid.with_context(|| format!("{node} is off"))?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={pid}"));
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--", "sh", "-c", script]);
        Ok(command)
    }

    /// Returns the pid of the agent in the pid namespace of its node.
    ///
    /// # Errors
    /// If no agent runs there.
    pub fn agent_process(&self, node: &str) -> Result<String> {
        let script = "for process in /proc/[0-9]*; do
            if [ \"$(cat $process/comm 2>/dev/null)\" = drydock-agent ]; then echo ${process#/proc/}; fi
        done";
        let found = self.on_node(node, script)?;
        found.lines().next().map(str::to_owned).context("no agent process runs")
    }

    /// Returns a node.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn node(&self, name: &str) -> Result<Node> {
        Ok(Api::all(self.client.clone()).get(name).await?)
    }

    /// Returns the labels of a node that belong to the labeller.
    ///
    /// # Errors
    /// If the node cannot be read.
    pub async fn cpu_labels(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let all = self.node(name).await?.metadata.labels.unwrap_or_default();
        Ok(all.into_iter().filter(|(key, _)| labels::is_owned(key)).collect())
    }

    /// Merges labels into a node; `None` removes a label.
    ///
    /// # Errors
    /// If the node cannot be written.
    pub async fn label(&self, node: &str, changes: &[(&str, Option<&str>)]) -> Result<()> {
        self.merge_metadata(node, "labels", changes).await
    }

    /// Merges annotations into a node; `None` removes an annotation.
    ///
    /// # Errors
    /// If the node cannot be written.
    pub async fn annotate(&self, node: &str, changes: &[(&str, Option<&str>)]) -> Result<()> {
        self.merge_metadata(node, "annotations", changes).await
    }

    async fn merge_metadata(&self, node: &str, field: &str, changes: &[(&str, Option<&str>)]) -> Result<()> {
        let changes: BTreeMap<_, _> = changes.iter().copied().collect();
        let patch = json!({"metadata": {field: changes}});
        Api::<Node>::all(self.client.clone())
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Returns the Hypervisor of a node.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn hypervisor(&self, node: &str) -> Result<Hypervisor> {
        Ok(Api::all(self.client.clone()).get(node).await?)
    }

    /// Returns the agent's pod on a node, unless it is being deleted.
    ///
    /// # Errors
    /// If there is none or more than one.
    pub async fn agent_pod(&self, node: &str) -> Result<Pod> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "drydock");
        let wanted = ListParams::default()
            .labels("app.kubernetes.io/name=drydock-agent")
            .fields(&format!("spec.nodeName={node}"));
        let mut found: Vec<Pod> = pods
            .list(&wanted)
            .await?
            .items
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect();
        ensure!(found.len() == 1, "{} agent pods on {node}", found.len());
        found.pop().context("no agent pod")
    }

    /// Runs a shell command in the agent's container on a node.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub async fn in_agent(&self, node: &str, script: &str) -> Result<String> {
        let pod = self.agent_pod(node).await?.metadata.name.unwrap_or_default();
        self.kubectl(&["-n", "drydock", "exec", &pod, "-c", "agent", "--", "sh", "-c", script])
    }

    /// Returns the response to GET on a path of the API server.
    ///
    /// # Errors
    /// If the response is an error, or the API server does not respond.
    pub async fn get(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        self.client
            .request_text(request)
            .await
            .with_context(|| format!("GET {path}"))
    }

    /// Queries the agent's admin port through the API server.
    ///
    /// # Errors
    /// If it does not respond.
    pub async fn agent_admin(&self, node: &str, path: &str) -> Result<String> {
        let pod = self.agent_pod(node).await?.metadata.name.unwrap_or_default();
        self.get(&format!("/api/v1/namespaces/drydock/pods/{pod}:8080/proxy/{path}"))
            .await
    }

    /// Queries the admin port of the tunnel in an agent's pod through the API server.
    ///
    /// # Errors
    /// If it does not respond.
    pub async fn tunnel_admin(&self, pod: &str, path: &str) -> Result<String> {
        self.get(&format!("/api/v1/namespaces/drydock/pods/{pod}:8081/proxy/{path}"))
            .await
    }

    /// Deletes an object by its kind and name, if it exists.
    ///
    /// # Errors
    /// If it cannot be deleted.
    pub fn delete(&self, arguments: &[&str]) -> Result<()> {
        let mut all = vec!["delete", "--ignore-not-found", "--wait=true"];
        all.extend(arguments);
        self.kubectl(&all).map(drop)
    }

    /// Replaces the legacy ConfigMap by the one of `hack/test` with these additional entries.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn configure(&self, entries: &[(&str, &str)]) -> Result<()> {
        let emulation = ("debug.useEmulation", "true");
        let data = [&[emulation], entries].concat().into_iter();
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(CONFIG_MAP.into()),
                ..ObjectMeta::default()
            },
            data: Some(data.map(|(key, value)| (key.into(), value.into())).collect()),
            ..ConfigMap::default()
        };
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), "drydock");
        match maps.replace(CONFIG_MAP, &PostParams::default(), &map).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                maps.create(&PostParams::default(), &map).await?;
            }
            replaced => drop(replaced?),
        }
        Ok(())
    }

    /// Deletes all objects of a kind in a namespace, without waiting for the deletion to complete.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn delete_all<K: Resource<DynamicType = ()>>(&self, namespace: &str) -> Result<()> {
        // The objects that a test has written may not be readable as their type.
        let kind = ApiResource::erase::<K>(&());
        let all = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &kind);
        let parameters = DeleteParams::background();
        all.delete_collection(&parameters, &ListParams::default()).await?;
        Ok(())
    }

    /// Deletes all pods in a namespace without a grace period, and waits until they are deleted.
    ///
    /// # Errors
    /// If that fails.
    pub async fn delete_pods_now(&self, namespace: &str) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let now = DeleteParams::default().grace_period(0);
        pods.delete_collection(&now, &ListParams::default()).await?;
        until_some(&format!("the deletion of all pods in {namespace}"), || async {
            let left = pods.list_metadata(&ListParams::default()).await?;
            Ok(left.items.is_empty().then_some(()))
        })
        .await
    }

    /// Cordons a node, or uncordons it.
    ///
    /// # Errors
    /// If the node cannot be written.
    pub async fn cordon(&self, node: &str, closed: bool) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": closed.then_some(true)}}));
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Removes leftovers of earlier tests.
    ///
    /// The function sends requests itself, since hundreds of kubectl processes would take minutes.
    ///
    /// # Errors
    /// If that fails.
    pub async fn reset(&self) -> Result<()> {
        let configurations = Api::<HyperConverged>::all(self.client.clone());
        for found in configurations.list_metadata(&ListParams::default()).await? {
            let namespace = found.namespace().unwrap_or_default();
            self.delete_all::<HyperConverged>(&namespace).await?;
        }
        self.configure(&[]).await?;
        self.delete_pods_now(NAMESPACE).await?;
        for node in &self.nodes {
            let open = Patch::Merge(json!({"spec": {"unschedulable": null, "taints": null}}));
            let nodes = Api::<Node>::all(self.client.clone());
            nodes.patch(node, &PatchParams::default(), &open).await?;
            self.annotate(
                node,
                &[
                    (drydock_api::annotations::SKIP_NODE, None),
                    (drydock_api::annotations::MASK_CPU_FEATURES, None),
                    (drydock_api::annotations::DRAIN_PREVIEW, None),
                ],
            )
            .await?;
        }
        Ok(())
    }

    /// Deletes a pod without a grace period.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn delete_pod_now(&self, namespace: &str, name: &str) -> Result<()> {
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        Api::<Pod>::namespaced(self.client.clone(), namespace)
            .delete(name, &parameters)
            .await?;
        Ok(())
    }

    /// Returns a client with a token of the agent on a node.
    ///
    /// # Errors
    /// If no token can be created.
    pub async fn as_agent_of(&self, node: &str) -> Result<Client> {
        let pod = self.agent_pod(node).await?.metadata.name.unwrap_or_default();
        self.as_agent_in(&pod).await
    }

    /// Returns a client with a token of the agents' service account, bound to a pod in Drydock's namespace.
    ///
    /// # Errors
    /// If no token can be created.
    pub async fn as_agent_in(&self, pod: &str) -> Result<Client> {
        self.with_token(&["drydock-agent", "--bound-object-kind=Pod", "--bound-object-name", pod])
            .await
    }

    /// Returns a client with a token of the controller.
    ///
    /// # Errors
    /// If no token can be created.
    pub async fn as_controller(&self) -> Result<Client> {
        self.with_token(&["drydock-controller"]).await
    }

    /// Returns a client with a token of one of Drydock's service accounts.
    ///
    /// `of` contains the arguments of `kubectl create token`.
    async fn with_token(&self, of: &[&str]) -> Result<Client> {
        let token = self.kubectl(&[&["-n", "drydock", "create", "token"], of].concat())?;
        let mut kubeconfig = Kubeconfig::read_from(&self.description.kubeconfig)?;
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(serde_json::from_value(json!({"token": token.trim()}))?);
        }
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        Ok(Client::try_from(config)?)
    }

    /// Returns the events of objects with this name, without the events' metadata.
    ///
    /// # Errors
    /// If events cannot be listed.
    pub async fn events(&self, name: &str) -> Result<Vec<Value>> {
        let resource = ApiResource::erase::<Event>(&());
        let all = Api::<DynamicObject>::namespaced_with(self.client.clone(), NAMESPACE, &resource);
        let events = all.list(&ListParams::default()).await?.items.into_iter();
        let found = events.map(|event| event.data);
        Ok(found.filter(|event| event["regarding"]["name"] == name).collect())
    }

    /// Returns the events of a node with this reason.
    ///
    /// # Errors
    /// If events cannot be listed.
    pub async fn node_events(&self, node: &str, reason: &str) -> Result<Vec<Value>> {
        let mut events = self.events(node).await?;
        events.retain(|event| event["regarding"]["kind"] == "Node" && event["reason"] == reason);
        Ok(events)
    }
}

/// A command that runs in the background.
#[derive(Debug)]
pub struct Begun(Option<Child>);

impl Begun {
    /// Waits until the command has ended, and returns its output.
    ///
    /// # Errors
    /// If it failed, with its output.
    pub fn finish(mut self) -> Result<String> {
        let child = self.0.take().context("the process was already awaited")?;
        let _stopwatch = Stopwatch::start("the end of kubectl".to_owned());
        let done = child.wait_with_output()?;
        let output = format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        ensure!(done.status.success(), "{}: {output}", done.status);
        Ok(output)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // A test that has failed must not leave a running drain behind.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the current time, for tests that write as a kubelet, a remediator or an attacker.
#[expect(clippy::disallowed_methods, reason = "tests act as components that have a clock")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Returns the path of a program that `hack/test cluster` builds, from the environment variable that it sets.
///
/// # Errors
/// If the variable is not set, since the tests are run in another way.
pub(crate) fn program(variable: &str) -> Result<String> {
    setting(variable).with_context(|| format!("{variable} is not set: use `hack/test cluster`"))
}

/// Returns a setting of the tests from the environment.
#[expect(clippy::disallowed_methods, reason = "tests have no command line of their own")]
pub fn setting(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn output(command: &mut Command) -> Result<String> {
    let _stopwatch = Stopwatch::start(format!("{command:?}"));
    let done = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        bail!(
            "{command:?} ended with {}\n{text}{}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(text)
}
