//! `kubectl drydock drain` on terminals of several widths, on a real cluster.

use std::{
    fs::File,
    io::Read,
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::Phase;
use drydock_cli::{Exit, run_live};
use drydock_tests::{
    Cluster,
    guests::{NAMESPACE, bare_instance},
    watching::until_some,
};
use nix::pty::{Winsize, openpty};

/// Starts a command line on a terminal of this width. Returns its exit code and all text that it wrote to the terminal.
fn start(cluster: &Cluster, columns: u16, arguments: &[&str]) -> Result<JoinHandle<(Exit, String)>> {
    let mut line = vec!["kubectl-drydock".to_owned(), "--no-color".into()];
    line.extend(arguments.iter().map(|&argument| argument.to_owned()));
    line.extend(["--kubeconfig".to_owned(), cluster.kubeconfig().display().to_string()]);
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None)?;
    let (mut master, mut out) = (File::from(pty.master), File::from(pty.slave.try_clone()?));
    let reading = thread::spawn(move || {
        let (mut written, mut buffer) = (Vec::new(), [0; 4096]);
        // The read fails once no process has the terminal open.
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            written.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8_lossy(&written).into_owned()
    });
    // A thread is necessary, since the command line has its own async runtime.
    Ok(thread::spawn(move || {
        let exit = run_live(line, pty.slave.into(), &mut out);
        drop(out);
        (exit, reading.join().unwrap_or_default())
    }))
}

/// Returns the written lines without their escape sequences.
fn lines(written: &str) -> Vec<String> {
    let parts = written.split('\x1b');
    let text: String = parts
        .map(|part| match part.strip_prefix('[') {
            Some(part) => part
                .split_once(|c: char| c.is_ascii_alphabetic())
                .map_or("", |(_, text)| text),
            None => part,
        })
        .collect();
    text.replace('\r', "").lines().map(str::to_owned).collect()
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn drain_is_drawn_on_terminals_of_80_and_40_columns() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = {
        let nodes = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
        nodes.trim().to_owned()
    };
    // The host name label of this node matches no other node.
    let pinned = bare_instance("pinned").replace(
        "spec:\n",
        &format!("spec:\n  evictionStrategy: LiveMigrate\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n"),
    );
    cluster.apply(&pinned).await?;
    cluster.until_phase("pinned", Phase::Running).await?;
    for columns in [80, 40] {
        let drawn = start(&cluster, columns, &["drain", &node, "--fail-when-blocked", "1s"])?;
        let (exit, written) = drawn.join().ok().context("the command panicked")?;
        ensure!(exit == Exit::Blocked, "{exit:?}: {written}");
        let lines = lines(&written);
        let wide = lines.iter().find(|line| line.chars().count() > columns.into());
        ensure!(wide.is_none(), "{wide:?}");
        for part in [format!("{node}  "), format!("BLOCKED   {NAMESPACE}/pinned")] {
            ensure!(lines.iter().any(|line| line.contains(&part)), "{part}: {lines:#?}");
        }
        ensure!(
            written.contains("\x1b[2K") && written.ends_with("\x1b[J"),
            "{written:?}"
        );
    }
    cluster.no_guests().await?;
    let drawn = start(&cluster, 80, &["watch", &node, "--timeout", "120"])?;
    let (exit, written) = drawn.join().ok().context("the command panicked")?;
    ensure!(
        exit == Exit::Done && written.contains("safe to switch off"),
        "{exit:?}: {written}"
    );
    let mut out = Vec::new();
    let stop = ["kubectl-drydock", "maintenance", "stop", &node, "--kubeconfig"].map(str::to_owned);
    let mut stop: Vec<String> = stop.into();
    stop.push(cluster.kubeconfig().display().to_string());
    let stopped = thread::spawn(move || drydock_cli::run(stop, &drydock_cli::Terminal { width: 80 }, &mut out));
    ensure!(
        stopped.join().ok() == Some(Exit::Done),
        "the maintenance was not stopped"
    );
    until_some("no node in maintenance", || async {
        let found = cluster.kubectl(&["get", "nodemaintenances.nodemaintenance.medik8s.io", "-o", "name"])?;
        Ok(found.trim().is_empty().then_some(()))
    })
    .await
}
