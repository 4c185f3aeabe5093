//! Virtual machines of tests: their manifests, their externally visible state, and whether they run without
//! interruption.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use drydock_api::kubevirt::{
    Phase, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceReplicaSet,
    names,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams},
    discovery::{Scope, pinned_kind},
};
use tokio::{net::UdpSocket, sync::Mutex, task::JoinHandle};

use crate::{
    Cluster,
    migration_summary::summary,
    watching::{Stopwatch, until, until_ok, until_some},
};

/// The namespace of tests' virtual machines.
pub const NAMESPACE: &str = "default";
/// The image of the guest, with the name in KubeVirt's documentation.
pub const IMAGE: &str = "kubevirt/fedora-cloud-container-disk-demo:latest";

/// The image of a guest without an operating system.
///
/// The guest counts on its console, and switches off when its power button is pressed. It starts at once, whereas Linux
/// takes seconds on an emulated processor.
pub const BARE_IMAGE: &str = "localhost/drydock/bare-guest:dev";

/// Returns the manifest of a small VirtualMachineInstance; `control` are lines of the guest's `drydock:` map.
pub fn instance(name: &str, control: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n{}",
        spec(control, 2)
    )
}

/// Returns the manifest of a VirtualMachineInstance whose guest is that of [`BARE_IMAGE`].
pub fn bare_instance(name: &str) -> String {
    instance(name, "").replace(IMAGE, BARE_IMAGE)
}

/// Returns the spec of a guest with [`BARE_IMAGE`], indented by `depth` spaces.
pub fn bare_spec(depth: usize) -> String {
    spec("", depth).replace(IMAGE, BARE_IMAGE)
}

/// Returns the spec of a small guest, indented by `depth` spaces.
pub fn spec(control: &str, depth: usize) -> String {
    let control: String = control.lines().map(|line| format!("          {line}\n")).collect();
    let text = format!(
        "terminationGracePeriodSeconds: 30\n\
         domain:\n  resources: {{requests: {{memory: 96Mi}}}}\n  devices:\n    disks:\n    \
         - {{name: containerdisk, disk: {{bus: virtio}}}}\n    - {{name: cloudinitdisk, disk: {{bus: virtio}}}}\n\
         volumes:\n- name: containerdisk\n  containerDisk: {{image: {IMAGE}, imagePullPolicy: IfNotPresent}}\n\
         - name: cloudinitdisk\n  cloudInitNoCloud:\n    userData: |\n      #cloud-config\n      password: fedora\n      \
         chpasswd: {{ expire: False }}\n      drydock:\n{}",
        control.replace("          ", "        ")
    );
    text.lines()
        .map(|line| format!("{}{line}\n", " ".repeat(depth)))
        .collect()
}

impl Cluster {
    /// Returns the API of VirtualMachineInstances.
    pub fn instances(&self) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of pods in the tests' namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Applies the objects of a manifest by server-side apply; in the tests' namespace, unless they name another.
    ///
    /// # Errors
    /// If the API server rejects one of them.
    pub async fn apply(&self, manifest: &str) -> Result<()> {
        for object in serde_saphyr::from_multiple::<DynamicObject>(manifest)? {
            let types = object.types.as_ref().context("an object without apiVersion and kind")?;
            let (kind, capabilities) = pinned_kind(&self.client, &types.try_into()?).await?;
            let client = self.client.clone();
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Cluster => Api::all_with(client, &kind),
                Scope::Namespaced => {
                    let namespace = object.namespace().unwrap_or_else(|| NAMESPACE.into());
                    Api::namespaced_with(client, &namespace, &kind)
                }
            };
            let owner = PatchParams::apply("drydock-tests").force();
            let name = object.name_any();
            let applied = api.patch(&name, &owner, &Patch::Apply(&object)).await;
            applied.with_context(|| format!("applying {} {name}", types.kind))?;
        }
        Ok(())
    }

    /// Waits for a phase of an instance.
    ///
    /// # Errors
    /// If it does not occur in time.
    pub async fn until_phase(&self, name: &str, phase: Phase) -> Result<VirtualMachineInstance> {
        let is = |instance: &VirtualMachineInstance| instance.phase() == Some(phase);
        until(self.instances(), name, phase.as_str(), is).await
    }

    /// Waits for the status of an instance's condition.
    ///
    /// # Errors
    /// If it does not occur in time.
    pub async fn until_vm_condition(&self, name: &str, type_: &str, status: &str) -> Result<VirtualMachineInstance> {
        let what = format!("{type_}={status}");
        let is = |instance: &VirtualMachineInstance| condition(instance, type_).0 == status;
        until(self.instances(), name, &what, is).await
    }

    /// Returns the pods that belong to the UID of an instance, the newest last.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn launchers_of(&self, instance: &VirtualMachineInstance) -> Result<Vec<Pod>> {
        let uid = instance.uid().unwrap_or_default();
        let parameters = ListParams::default().labels(&format!("{}={uid}", names::CREATED_BY));
        let mut pods = self.pods().list(&parameters).await?.items;
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone().map(|time| time.0));
        Ok(pods)
    }

    /// Returns the newest pod of an instance.
    ///
    /// # Errors
    /// If there is none.
    pub async fn launcher(&self, name: &str) -> Result<Pod> {
        let instance = self.instances().get(name).await?;
        let mut pods = self.launchers_of(&instance).await?;
        pods.pop().with_context(|| format!("{name} has no pod"))
    }

    /// Returns the console output of an instance's guest so far, without the launcher's lines.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub async fn console(&self, name: &str) -> Result<String> {
        let pod = self.launcher(name).await?.name_any();
        let text = self.pods().logs(&pod, &LogParams::default()).await?;
        let guest = text.lines().filter_map(|line| line.strip_prefix("guest: "));
        Ok(guest.flat_map(|line| [line, "\n"]).collect())
    }

    /// Waits until the console output of an instance's guest contains a text, and returns the whole output.
    ///
    /// If the guest stops for a while in the middle of a line, the log contains this line in two parts.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_console(&self, name: &str, expected: &str) -> Result<String> {
        let what = format!("{name} to print {expected:?}");
        let found = until_some(&what, || async {
            // The log may not exist yet.
            let text = self.console(name).await.unwrap_or_default();
            let found = text.contains(expected) || text.replace('\n', "").contains(expected);
            Ok(found.then_some(text))
        });
        match found.await {
            Ok(text) => Ok(text),
            Err(error) => {
                let text = self.console(name).await.unwrap_or_else(|error| format!("{error:#}"));
                let instance = self.instances().get_opt(name).await.ok().flatten();
                let status = instance.and_then(|instance| instance.status);
                let printed = excerpt(&text);
                Err(error).with_context(|| format!("the console printed:\n{printed}\nthe status is {status:?}"))
            }
        }
    }

    /// Waits until an instance is deleted.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_gone(&self, name: &str) -> Result<()> {
        until_some(&format!("the deletion of {name}"), || async {
            Ok(self.instances().get_opt(name).await?.is_none().then_some(()))
        })
        .await
    }

    /// Returns the cluster as installed, without virtual machines of earlier tests.
    ///
    /// # Errors
    /// If that fails.
    pub async fn without_guests() -> Result<Self> {
        let cluster = Self::connect().await?;
        cluster.reset().await?;
        cluster.no_guests().await?;
        Ok(cluster)
    }

    /// Deletes all virtual machines of earlier tests, and waits until their pods are deleted.
    ///
    /// # Errors
    /// If that fails.
    pub async fn no_guests(&self) -> Result<()> {
        self.delete_all::<VirtualMachine>(NAMESPACE).await?;
        self.delete_all::<VirtualMachineInstanceReplicaSet>(NAMESPACE).await?;
        self.delete_all::<VirtualMachineInstanceMigration>(NAMESPACE).await?;
        self.delete_all::<VirtualMachineInstance>(NAMESPACE).await?;
        let launchers = ListParams::default().labels(&format!("{}={}", names::APP, names::VIRT_LAUNCHER));
        let hurried = DeleteParams {
            grace_period_seconds: Some(1),
            ..DeleteParams::default()
        };
        until_ok("the deletion of all guests", || async {
            for pod in self.pods().list(&launchers).await?.items {
                // Guests of tests need no graceful shutdown.
                let _ = self.pods().delete(&pod.name_any(), &hurried).await;
            }
            let instances = self.instances().list(&ListParams::default()).await?.items;
            let migrations = self.migrations().list(&ListParams::default()).await?.items;
            let pods = self.pods().list(&launchers).await?.items;
            let mut refused = Vec::new();
            if pods.is_empty() {
                // If a test has set the status of an instance itself, no component can report that its pods have ended.
                let kept = Patch::Merge(serde_json::json!({"metadata": {"finalizers": null}}));
                for instance in &instances {
                    let name = instance.name_any();
                    let freed = self.instances().patch(&name, &PatchParams::default(), &kept).await;
                    refused.extend(freed.err().map(|error| format!("finalizers of {name}: {error}")));
                }
            }
            let mut left: Vec<String> = pods.iter().map(pod_left).collect();
            left.extend(instances.iter().map(|instance| {
                let status = instance.status.clone().unwrap_or_default();
                let short = (status.phase, status.reason, status.node_name, status.active_pods);
                object_left("instance", instance, &short)
            }));
            left.extend(
                migrations
                    .iter()
                    .map(|migration| object_left("migration", migration, &summary(migration))),
            );
            left.extend(refused);
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join("\n")) })
        })
        .await
    }
}

/// Describes an object that should be deleted: its finalizers and its status.
fn object_left<K: ResourceExt>(kind: &str, object: &K, status: &impl Debug) -> String {
    let meta = object.meta();
    format!(
        "{kind} {} (deleted {:?}, finalizers {:?}): {status:?}",
        object.name_any(),
        meta.deletion_timestamp.as_ref().map(|time| time.0),
        object.finalizers(),
    )
}

/// Describes a pod that should be deleted, with the states of its containers.
fn pod_left(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let statuses = status.init_container_statuses.into_iter().flatten();
    let containers: Vec<_> = statuses
        .chain(status.container_statuses.into_iter().flatten())
        .map(|container| (container.name, container.state))
        .collect();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    object_left("pod", pod, &(node, status.phase, status.reason, containers))
}

/// Returns the status and the reason of an instance's condition.
pub fn condition(instance: &VirtualMachineInstance, type_: &str) -> (String, String) {
    instance
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == type_)
        .map(|condition| (condition.status.clone(), condition.reason.clone().unwrap_or_default()))
        .unwrap_or_default()
}

/// A numbered output of a guest, which shows that the guest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The number, from 1.
    pub number: u64,
    /// The ID of the guest's boot to which the tick belongs.
    pub boot: String,
}

/// Returns the ticks in a text.
pub fn ticks(text: &str) -> Vec<Tick> {
    text.lines()
        .filter_map(|line| {
            // A tick may follow a login prompt, which does not end its line.
            let mut fields = line.split_once("tick ")?.1.split(' ');
            let number = fields.next()?.parse().ok()?;
            let boot = fields.next()?.strip_prefix("boot=")?.to_owned();
            Some(Tick { number, boot })
        })
        .collect()
}

/// Checks that one guest ran without interruption: one boot, no number missing or duplicated.
///
/// # Errors
/// The first number that violates this.
pub fn without_a_gap(ticks: &[Tick]) -> Result<()> {
    let first = ticks.first().context("the guest printed no tick")?;
    for (tick, number) in ticks.iter().zip(first.number..) {
        ensure!(
            tick.boot == first.boot,
            "the guest booted again: {} then {}",
            first.boot,
            tick.boot
        );
        ensure!(
            tick.number == number,
            "expected tick {number}, found tick {}",
            tick.number
        );
    }
    Ok(())
}

/// A tick that was received outside the pods.
#[derive(Clone, Debug)]
struct Received {
    tick: Tick,
    from: IpAddr,
    at: Instant,
}

/// Receives datagrams from guests, outside the pods.
pub struct Collector {
    /// The address to which guests send.
    address: String,
    received: Arc<Mutex<Vec<Received>>>,
    task: JoinHandle<()>,
}

impl Collector {
    /// Listens on the host's address in the cluster's network.
    ///
    /// # Errors
    /// If it cannot.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
        let address = format!("{}:{}", cluster.host_address()?, socket.local_addr()?.port());
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&received);
        #[expect(clippy::disallowed_methods, reason = "tests have no task tracker; stop() ends it")]
        let task = tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..length]);
                let (from, at) = (from.ip(), Instant::now());
                let all = ticks(&text).into_iter().map(|tick| Received { tick, from, at });
                kept.lock().await.extend(all);
            }
        });
        Ok(Self {
            address,
            received,
            task,
        })
    }

    /// Returns lines for a guest's control file: the guest sends ticks to this collector, at the interval `every`.
    pub fn datagrams(&self, every: &str) -> String {
        format!("udp: \"{}\"\nudp-interval: {every}", self.address)
    }

    /// Returns lines for a guest's control file: the guest counts on its console, and sends ticks as in
    /// [`Self::datagrams`].
    pub fn ticking(&self, every: &str) -> String {
        format!("count: 200ms\n{}", self.datagrams(every))
    }

    /// Returns the received ticks so far, by boot.
    pub async fn received(&self) -> BTreeMap<String, Vec<Tick>> {
        let mut boots = BTreeMap::<String, Vec<Tick>>::new();
        for Received { tick, .. } in self.received.lock().await.iter() {
            boots.entry(tick.boot.clone()).or_default().push(tick.clone());
        }
        boots
    }

    /// Returns the source addresses of a boot's ticks, without consecutive duplicates.
    pub async fn senders(&self, boot: &str) -> Vec<IpAddr> {
        let all = self.received.lock().await;
        let mut senders: Vec<IpAddr> = all
            .iter()
            .filter(|received| received.tick.boot == boot)
            .map(|received| received.from)
            .collect();
        senders.dedup();
        senders
    }

    /// Returns the longest time between two ticks of a boot: an upper bound of its downtime.
    pub async fn longest_gap(&self, boot: &str) -> Duration {
        let all = self.received.lock().await;
        let times: Vec<Instant> = all
            .iter()
            .filter(|received| received.tick.boot == boot)
            .map(|received| received.at)
            .collect();
        let gaps = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
        gaps.max().unwrap_or_default()
    }

    /// Returns the received ticks so far, in order of arrival.
    pub async fn in_order(&self) -> Vec<Tick> {
        let all = self.received.lock().await;
        all.iter().map(|received| received.tick.clone()).collect()
    }

    /// Waits until `more` further ticks of a boot have arrived.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_more(&self, boot: &str, more: usize) -> Result<()> {
        let count = |all: &BTreeMap<String, Vec<Tick>>| all.get(boot).map_or(0, Vec::len);
        let before = count(&self.received().await);
        until_some(&format!("{more} more datagrams of boot {boot}"), || async {
            Ok((count(&self.received().await) >= before + more).then_some(()))
        })
        .await
    }

    /// Waits for the first tick of any boot, and returns that boot.
    ///
    /// # Errors
    /// If there is none.
    pub async fn first_boot(&self) -> Result<String> {
        until_some("a datagram of a guest", || async {
            Ok(self.received().await.keys().next().cloned())
        })
        .await
    }

    /// Stops, and returns the received ticks by boot.
    pub async fn stop(self) -> BTreeMap<String, Vec<Tick>> {
        self.task.abort();
        self.received().await
    }
}

/// Sleeps between two checks that something does *not* happen, since no event reports its absence.
pub async fn meanwhile(span: Duration) {
    let _stopwatch = Stopwatch::start("pause".to_owned());
    tokio::time::sleep(span).await;
}

/// Returns an excerpt of a console output for error messages: its first lines that are not ticks, and its end.
fn excerpt(console: &str) -> String {
    let others = console
        .lines()
        .filter(|line| ticks(line).is_empty() && !line.trim().is_empty())
        .take(20);
    let lines: Vec<&str> = console.lines().collect();
    let end = &lines[lines.len().saturating_sub(3)..];
    let parts: Vec<&str> = others.chain(["…"]).chain(end.iter().copied()).collect();
    parts.join("\n")
}

/// Returns the only value of a map.
///
/// # Errors
/// If there are others or none.
pub fn only<V>(mut map: BTreeMap<String, V>) -> Result<V> {
    match (map.pop_first(), map.is_empty()) {
        (Some((_, value)), true) => Ok(value),
        (Some((first, _)), false) => bail!("expected only {first}, also found {:?}", map.keys()),
        (None, _) => Err(anyhow!("the map is empty")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_excerpt_keeps_the_end_and_lines_without_ticks() {
        let ticks: String = (1..900)
            .map(|number| format!("tick {number} boot=a wall=1.000\n"))
            .collect();
        let printed = excerpt(&format!("ready\n\n{ticks}dirty 4 M\niB\n{ticks}"));
        assert_eq!(
            printed,
            "ready\ndirty 4 M\niB\n…\ntick 897 boot=a wall=1.000\ntick 898 boot=a wall=1.000\ntick 899 boot=a wall=1.000"
        );
    }

    #[test]
    fn gaps_repetitions_and_other_boots_are_found() {
        let tick = |number: u64, boot: &str| format!("tick {number} boot={boot} wall=1.000 up=1.000 late=0ms\n");
        let of = |numbers: &[(u64, &str)]| -> Vec<Tick> {
            ticks(
                &numbers
                    .iter()
                    .map(|(number, boot)| tick(*number, boot))
                    .collect::<String>(),
            )
        };
        assert!(without_a_gap(&of(&[(3, "a"), (4, "a"), (5, "a")])).is_ok());
        for broken in [
            &[][..],
            &[(1, "a"), (3, "a")],
            &[(1, "a"), (1, "a")],
            &[(1, "a"), (2, "b")],
        ] {
            assert!(without_a_gap(&of(broken)).is_err(), "{broken:?}");
        }
    }
}
