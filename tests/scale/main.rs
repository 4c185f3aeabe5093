//! Simulates the nodes of a large cluster: their kubelets, their agents, and the guests that move between them.
//!
//! All simulated components run in one process, and communicate only through the API server.
//!
//! ```text
//!                 ┌─ world ───── Nodes, Hypervisors, VirtualMachineInstances, created once
//!  API server ◀──▶├─ heartbeats  Leases of kubelets and agents
//!                 ├─ kubelets ── launcher pods run, become ready, end and are removed
//!                 ├─ agents ──── guests run: the status that an agent reports
//!                 └─ simulated_agents ─ both sides of each migration: the agents' own decisions, no libvirt
//!                                    └─▶ a line of JSON for each guest that has moved
//! ```
//!
//! The scheduler, the controller manager and Drydock's controller are real. One watch serves all nodes, where each real
//! agent and kubelet would have its own. Writes of agents use the agents' service account on the respective node, so
//! that roles and admission policies apply to them.
//!
//! `hack/bench scale` runs this program. The program creates the nodes, and then executes the lines of its standard
//! input: `machines` creates the virtual machines and waits until all of them run, `count` prints the number of
//! requests so far. The program ends at the end of its input.

#![expect(
    clippy::disallowed_methods,
    reason = "this process simulates many processes, whose clocks and watches all end with it"
)]

mod agents;
mod heartbeats;
mod kubelets;
mod latest;
mod requests;
mod simulated_agents;
mod simulated_guest;
mod world;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use clap::Parser;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    agents::Agents,
    heartbeats::heartbeats,
    kubelets::Kubelets,
    latest::Latest,
    requests::Requests,
    simulated_agents::{MoveSpeed, SimulatedAgents},
    world::ScaleWorld,
};

/// Plays the nodes of a large cluster.
#[derive(Debug, Parser)]
struct ScaleArgs {
    /// Kubeconfig of the administrator.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Number of nodes.
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    nodes: usize,
    /// Number of virtual machines, by turns on each node.
    #[arg(long, value_name = "NUMBER", default_value_t = 5000)]
    vms: usize,
    /// Time that a guest takes to move, in milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 10_000)]
    moves: u64,
    /// Maximum deviation of that time, in percent, evenly distributed.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=100))]
    spread: u64,
    /// Rate at which a guest's memory moves in addition, in MiB per second; without it the size does not matter.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = ScaleArgs::parse();
    let requests = Arc::new(Requests::open(&args.kubeconfig).await?);
    let world = ScaleWorld::of(args.nodes, args.vms);
    world.make_nodes(&requests).await?;
    let latest = Latest::start(&requests);
    let kubelets = Arc::new(Kubelets::new(&requests, &latest));
    let agents = Arc::new(Agents::new(&requests, &latest));
    let simulated = Arc::new(SimulatedAgents::new(
        &requests,
        &latest,
        &kubelets,
        MoveSpeed {
            fixed: Duration::from_millis(args.moves),
            rate: args.rate,
            spread: args.spread,
        },
    ));
    let playing = async {
        tokio::join!(
            heartbeats(&requests, &world),
            kubelets.run(),
            agents.run(),
            simulated.run(),
            latest.run()
        )
    };
    println!("{}", json!({"kind": "nodes", "count": args.nodes}));
    let obeying = async {
        let mut orders = BufReader::new(tokio::io::stdin()).lines();
        while let Some(order) = orders.next_line().await? {
            match order.trim() {
                "machines" => {
                    world.make_machines(&requests).await?;
                    latest.until_running(world.machines().len()).await;
                    println!("{}", json!({"kind": "running", "count": args.vms}));
                }
                "count" => println!("{}", json!({"kind": "requests", "counts": requests.counted()})),
                other => bail!("unknown order {other:?}; allowed: machines and count"),
            }
        }
        Ok(())
    };
    tokio::select! {
        result = obeying => result,
        _ = playing => bail!("the watches have ended"),
    }
}
