//! Injects a fault at a precise time: finds the target, strikes it, and undoes the fault.
//!
//! ```text
//!  find the process ──▶ a shell on its node waits for a line ──▶ strike: within a millisecond
//!                                                            └──▶ undo: continue it, start it, open the link
//! ```
//!
//! Processes are found by name and pod, and struck by pid.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use drydock_api::leases::CONTROLLER_LEASE;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::{sync::oneshot, time::timeout};

use super::{Case, Component, FaultKind, Side};
use crate::{
    Cluster,
    watching::{PATIENCE, until_some},
};

/// virsh in a launcher's pod, connected to the pod's libvirtd.
const VIRSH: &str = "virsh -q -c \"qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock\"";
/// The namespace of Drydock's own pods.
const OWN: &str = "drydock";
/// The iptables chain that cuts links.
const CHAIN: &str = "DRYDOCK-CUT";
/// Names of processes in the kernel, which truncates names to 15 bytes.
const AGENT: &str = "drydock-agent";
const CONTROLLER: &str = "drydock-control";
const LAUNCHER: &str = "drydock-launche";
const LIBVIRTD: &str = "libvirtd";
const QEMU: &str = "qemu-system-x86";

/// A process on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The pid in the node's pid namespace.
    pub pid: u32,
    /// The pid of its parent.
    parent: u32,
    /// The command line.
    pub cmdline: String,
    /// The cgroups, which contain the UID of the pod.
    groups: String,
}

impl Cluster {
    /// Returns the processes of a name on a node.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn processes(&self, node: &str, name: &str) -> Result<Vec<Process>> {
        let script = format!(
            "for comm in $(grep -lxs '{name}' /proc/[0-9]*/comm); do of=${{comm%/comm}}; \
             parent=$(sed -n 's/^PPid:[[:space:]]*//p' $of/status); \
             echo \"${{of#/proc/}}\t$parent\t$(tr '\\0' ' ' <$of/cmdline)\t$(tr '\\n' ' ' <$of/cgroup)\"; done 2>/dev/null; true"
        );
        let listed = self.on_node(node, &script)?;
        Ok(listed.lines().filter_map(process).collect())
    }

    /// Returns how many QEMU processes on a node run the guest of an instance.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn guests_on(&self, node: &str, namespace: &str, instance: &str) -> Result<usize> {
        let guest = format!("guest={namespace}_{instance},");
        let all = self.processes(node, QEMU)?;
        Ok(all.iter().filter(|process| process.cmdline.contains(&guest)).count())
    }

    /// Returns the node and the pid of the process with a name in a pod, without its children.
    ///
    /// The children have to be excluded, since a launcher runs its own program to prepare disks.
    ///
    /// # Errors
    /// If the process does not appear, or there are several.
    async fn process_in(&self, pod: &Pod, name: &str, arg: &str) -> Result<(String, u32)> {
        let uid = pod.uid().context("a pod without a UID")?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node.with_context(|| format!("{} has no node", pod.name_any()))?;
        let what = format!("{name} {arg} in {}", pod.name_any());
        let pid = until_some(&what, || async {
            let mut all = self.processes(&node, name)?;
            all.retain(|process| process.groups.contains(&uid));
            let mut all = without_children(all);
            all.retain(|process| process.cmdline.contains(arg));
            ensure!(all.len() < 2, "{what}: {all:?}");
            Ok(all.first().map(|process| process.pid))
        })
        .await?;
        Ok((node, pid))
    }

    /// Sends a QMP command to the QEMU of an instance in a pod, through libvirt's monitor passthrough.
    ///
    /// # Errors
    /// If QEMU reports an error, or the pod's libvirtd does not pass the command on.
    pub async fn send_qmp(&self, pod: &Pod, namespace: &str, instance: &str, command: &Value) -> Result<()> {
        let (node, pid) = self.process_in(pod, LAUNCHER, "").await?;
        let command = command.to_string().replace('"', "\\\"");
        let inside = format!("{VIRSH} qemu-monitor-command {namespace}_{instance} \"{command}\"");
        let reply: Value = serde_json::from_str(&self.on_node(&node, &inside_launcher(pid, &inside))?)?;
        ensure!(reply["error"].is_null(), "{reply}");
        Ok(())
    }

    /// Returns the pod of the leading controller.
    ///
    /// # Errors
    /// If none leads.
    pub async fn leading_controller(&self) -> Result<Pod> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), OWN);
        let pods = Api::<Pod>::namespaced(self.client.clone(), OWN);
        until_some("a controller that leads", || async {
            let holder = leases
                .get(CONTROLLER_LEASE)
                .await?
                .spec
                .and_then(|spec| spec.holder_identity);
            let Some(holder) = holder else { return Ok(None) };
            let name = holder.rsplit_once('_').map_or(holder.as_str(), |(pod, _)| pod);
            Ok(pods.get_opt(name).await?)
        })
        .await
    }
}

/// Returns a script that runs another one in the namespaces of a launcher process, as its user.
fn inside_launcher(pid: u32, script: &str) -> String {
    format!(
        "exec nsenter -t {pid} -a -S 107 -G 107 env HOME=/tmp XDG_CACHE_HOME=/tmp XDG_CONFIG_HOME=/tmp sh -c '{script}'"
    )
}

/// Removes each process whose parent is in the list.
fn without_children(mut all: Vec<Process>) -> Vec<Process> {
    let pids: Vec<u32> = all.iter().map(|process| process.pid).collect();
    all.retain(|process| !pids.contains(&process.parent));
    all
}

/// Parses a line of [`Cluster::processes`].
fn process(line: &str) -> Option<Process> {
    let mut parts = line.split('\t');
    Some(Process {
        pid: parts.next()?.parse().ok()?,
        parent: parts.next()?.parse().ok()?,
        cmdline: parts.next()?.to_owned(),
        groups: parts.next()?.to_owned(),
    })
}

/// The nodes of both sides of a migration, and the pods that exist.
#[derive(Clone, Debug)]
pub struct Sides {
    /// The node that the guest leaves.
    pub source: String,
    /// The node to which the guest moves.
    pub target: String,
    /// The guest's current pod.
    pub source_pod: Pod,
    /// The target pod, if it exists.
    pub target_pod: Option<Pod>,
}

impl Sides {
    fn node(&self, side: Side) -> &str {
        if side == Side::Target {
            &self.target
        } else {
            &self.source
        }
    }

    fn pod(&self, side: Side) -> Result<&Pod> {
        match side {
            Side::Target => self.target_pod.as_ref().context("the target pod does not exist yet"),
            Side::Source | Side::Neither => Ok(&self.source_pod),
        }
    }
}

/// A fault that is ready to be injected.
#[derive(Debug)]
pub struct Blow {
    shell: WaitingShell,
    undo: Undo,
}

/// The reversal of a fault. Idempotent.
#[derive(Clone, Debug)]
pub enum Undo {
    /// Do nothing: the supervisor restarts the killed process.
    Nothing,
    /// Run a script on a node.
    OnNode(String, String),
    /// Run a script on the host.
    Here(String),
    /// Start the API server, which has no supervisor.
    StartApiServer,
}

impl Blow {
    /// Finds the target of a case, and prepares the fault.
    ///
    /// # Errors
    /// If the target does not exist.
    pub async fn prepare(cluster: &Cluster, case: Case, sides: &Sides) -> Result<Self> {
        let node = sides.node(case.side);
        let (node, pid) = match case.part {
            Component::NodeToNode | Component::NodeToApi => {
                let rules = link(case.part, &cluster.host_address()?);
                return Ok(Self {
                    shell: WaitingShell::on_node(cluster, node, &cut(&rules))?,
                    undo: Undo::OnNode(node.to_owned(), open()),
                });
            }
            Component::ApiServer => {
                let pid: u32 = cluster.embedded("pid", &["kube-apiserver"])?.trim().parse()?;
                let (script, undo) = match case.kind {
                    FaultKind::Freeze => (format!("kill -STOP {pid}"), Undo::Here(format!("kill -CONT {pid}"))),
                    FaultKind::Kill | FaultKind::Cut => (format!("kill -KILL {pid}"), Undo::StartApiServer),
                };
                return Ok(Self {
                    shell: WaitingShell::here(&script)?,
                    undo,
                });
            }
            Component::Agent => {
                cluster
                    .process_in(&cluster.agent_pod(node).await?, AGENT, " run")
                    .await?
            }
            Component::Tunnel => {
                cluster
                    .process_in(&cluster.agent_pod(node).await?, AGENT, " tunnel")
                    .await?
            }
            Component::Controller => {
                cluster
                    .process_in(&cluster.leading_controller().await?, CONTROLLER, "")
                    .await?
            }
            Component::Libvirtd => cluster.process_in(sides.pod(case.side)?, LIBVIRTD, "").await?,
            Component::Launcher => cluster.process_in(sides.pod(case.side)?, LAUNCHER, "").await?,
            Component::Qemu => cluster.process_in(sides.pod(case.side)?, QEMU, "").await?,
        };
        let (script, undo) = match case.kind {
            FaultKind::Freeze => (
                format!("kill -STOP {pid}"),
                // The liveness probe may have restarted the process.
                Undo::OnNode(node.clone(), format!("kill -CONT {pid} 2>/dev/null; true")),
            ),
            FaultKind::Kill | FaultKind::Cut => (format!("kill -KILL {pid}"), Undo::Nothing),
        };
        Ok(Self {
            shell: WaitingShell::on_node(cluster, &node, &script)?,
            undo,
        })
    }

    /// Returns the reversal of the fault.
    pub fn undo(&self) -> Undo {
        self.undo.clone()
    }

    /// Injects the fault, and returns when it has been injected.
    ///
    /// # Errors
    /// If that fails.
    pub fn strike(self) -> Result<()> {
        self.shell.go()
    }
}

impl Undo {
    /// Undoes the fault, and waits until the API server responds.
    ///
    /// # Errors
    /// If that fails.
    pub async fn carry_out(&self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Nothing => {}
            Self::OnNode(node, script) => drop(cluster.on_node(node, script)?),
            Self::Here(script) => WaitingShell::here(script)?.go()?,
            Self::StartApiServer => drop(cluster.embedded("start", &["kube-apiserver"])?),
        }
        until_some("the API server", || async {
            Ok(cluster.node(cluster.first()).await.ok())
        })
        .await
        .map(drop)
    }
}

/// Stops the agent of a node, which blocks everything that depends on the agent. Returns the action that continues it.
///
/// # Errors
/// If no agent runs on the node.
pub async fn hold_agent(cluster: &Cluster, node: &str) -> Result<Undo> {
    let (node, pid) = cluster
        .process_in(&cluster.agent_pod(node).await?, AGENT, " run")
        .await?;
    cluster.on_node(&node, &format!("kill -STOP {pid}"))?;
    Ok(Undo::OnNode(node, format!("kill -CONT {pid} 2>/dev/null; true")))
}

/// Detects the time at which libvirt stops a guest on its source for a migration, by libvirt's lifecycle event.
#[derive(Debug)]
pub struct HandOverWatch {
    process: Child,
    seen: oneshot::Receiver<Result<(), String>>,
}

impl HandOverWatch {
    /// Subscribes to the events of a pod's libvirtd.
    ///
    /// # Errors
    /// If virsh cannot be started.
    pub async fn start(cluster: &Cluster, pod: &Pod) -> Result<Self> {
        let (node, pid) = cluster.process_in(pod, LAUNCHER, "").await?;
        // virsh runs inside the pod, so that it ends with its input, whatever happens to the processes around it.
        let inside = format!("{VIRSH} event --event lifecycle --loop 2>&1 & it=$!; read -r _; kill $it");
        let script = inside_launcher(pid, &inside);
        let mut process = cluster
            .shell_on_node(&node, &script)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("virsh")?;
        let mut output = BufReader::new(process.stdout.take().context("no output")?);
        let (sender, seen) = oneshot::channel();
        thread::spawn(move || {
            let mut all = String::new();
            loop {
                let before = all.len();
                let read = output.read_line(&mut all);
                if all[before..].contains("Suspended") {
                    return sender.send(Ok(()));
                }
                if !read.is_ok_and(|count| count > 0) {
                    return sender.send(Err(all));
                }
            }
        });
        Ok(Self { process, seen })
    }

    /// Waits until the guest is stopped.
    ///
    /// # Errors
    /// If it is not, with the output of virsh.
    pub async fn wait(&mut self) -> Result<()> {
        match timeout(PATIENCE, &mut self.seen)
            .await
            .context("no hand-over was observed")?
        {
            Ok(Ok(())) => Ok(()),
            Ok(Err(output)) => bail!("no hand-over was observed; virsh printed {output:?}"),
            Err(_) => bail!("no hand-over was observed"),
        }
    }
}

impl Drop for HandOverWatch {
    fn drop(&mut self) {
        // virsh ends when its input is closed.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A shell that waits for a line before it runs a script.
#[derive(Debug)]
struct WaitingShell(Child);

impl WaitingShell {
    fn here(script: &str) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &waiting(script)]);
        Self::spawn(shell)
    }

    fn on_node(cluster: &Cluster, node: &str, script: &str) -> Result<Self> {
        Self::spawn(cluster.shell_on_node(node, &waiting(script))?)
    }

    fn spawn(mut shell: Command) -> Result<Self> {
        let mut process = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("sh")?;
        // The shell prints a line when it waits.
        let mut first = String::new();
        let stdout = process.stdout.as_mut().context("no output")?;
        let mut byte = BufReader::with_capacity(1, stdout);
        byte.read_line(&mut first)?;
        ensure!(first == "ready\n", "the shell printed {first:?}");
        Ok(Self(process))
    }

    fn go(mut self) -> Result<()> {
        self.0.stdin.take().context("no input")?.write_all(b"\n")?;
        let ended = self.0.wait()?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    }
}

impl Drop for WaitingShell {
    fn drop(&mut self) {
        // The shell exits if its input ends without a line.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn waiting(script: &str) -> String {
    format!("set -e; echo ready; read -r _ || exit 1; {script}")
}

/// Returns the packet matches of a link; `api` is the API server's address. On the network of the nodes there are only
/// the nodes and the host.
fn link(part: Component, api: &str) -> [String; 2] {
    if part == Component::NodeToApi {
        [format!("-i eth0 -p tcp -s {api}"), format!("-o eth0 -p tcp -d {api}")]
    } else {
        [format!("-i eth0 ! -s {api}"), format!("-o eth0 ! -d {api}")]
    }
}

fn cut(packets: &[String; 2]) -> String {
    let drops: String = packets
        .iter()
        .map(|packet| format!("iptables -w -A {CHAIN} {packet} -j DROP; "))
        .collect();
    // The chain is filled first, so that the first jump to it already drops all packets.
    format!(
        "iptables -w -N {CHAIN} 2>/dev/null || true; iptables -w -F {CHAIN}; {drops}{}",
        jumps("-I")
    )
}

fn open() -> String {
    format!(
        "iptables -w -F {CHAIN} 2>/dev/null; {}iptables -w -X {CHAIN} 2>/dev/null; true",
        jumps("-D").replace("; ", " 2>/dev/null; ")
    )
}

fn jumps(verb: &str) -> String {
    ["FORWARD", "INPUT", "OUTPUT"]
        .map(|chain| format!("iptables -w {verb} {chain} -j {CHAIN}; "))
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_identified_by_command_line_and_pod() {
        let found = process("412\t7\tdrydock-agent tunnel \t3:cpu:/x/pod1f-2/ab 1:name=/x");
        let found = found.expect("a process");
        assert_eq!(
            (found.pid, found.parent, found.cmdline.as_str()),
            (412, 7, "drydock-agent tunnel ")
        );
        assert!(found.groups.contains("pod1f-2"));
        assert_eq!(process("no process"), None);
    }

    #[test]
    fn launcher_with_a_launcher_child_is_one_process() {
        let lines = [
            "20\t9\tdrydock-launcher \tx",
            "33\t20\tdrydock-launcher --root / prepare \tx",
        ];
        let all = without_children(lines.iter().filter_map(|line| process(line)).collect());
        assert_eq!(all.iter().map(|process| process.pid).collect::<Vec<_>>(), [20]);
        let apart = ["20\t9\tdrydock-agent run \tx", "21\t9\tdrydock-agent tunnel \tx"];
        let all = without_children(apart.iter().filter_map(|line| process(line)).collect());
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn waiting_shell_runs_the_script_only_on_request() {
        let folder = std::env::temp_dir().join(format!("drydock-strike-{}", std::process::id()));
        let file = folder.with_extension("there");
        let shell = WaitingShell::here(&format!("touch {}", file.display())).expect("a shell");
        assert!(!file.exists());
        shell.go().expect("the script runs");
        assert!(file.exists());
        std::fs::remove_file(&file).expect("the file of the script");
        drop(WaitingShell::here(&format!("touch {}", file.display())).expect("a shell"));
        assert!(!file.exists(), "the script ran without a request");
        assert!(WaitingShell::here("false").expect("a shell").go().is_err());
    }

    #[test]
    fn cut_drops_a_single_link_and_is_reverted_completely() {
        let api = cut(&link(Component::NodeToApi, "192.0.2.1"));
        assert!(
            api.contains("-i eth0 -p tcp -s 192.0.2.1 -j DROP") && api.contains("-o eth0 -p tcp -d 192.0.2.1 -j DROP")
        );
        let nodes = cut(&link(Component::NodeToNode, "192.0.2.1"));
        assert!(nodes.contains("-i eth0 ! -s 192.0.2.1 -j DROP") && nodes.contains("-o eth0 ! -d 192.0.2.1 -j DROP"));
        for chain in ["FORWARD", "INPUT", "OUTPUT"] {
            assert!(api.contains(&format!("-I {chain} -j DRYDOCK-CUT")), "{api}");
            assert!(open().contains(&format!("-D {chain} -j DRYDOCK-CUT")), "{}", open());
        }
    }
}
