//! `kubectl drydock top`: tables of nodes, virtual machines and migrations. They are printed once, or again after each
//! change.

use std::{collections::HashSet, io::Write, time::Duration};

use drydock_api::{
    Hypervisor,
    kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration},
};
use drydock_runtime::clock;
use drydock_view::{
    guest_tables::{machine_listing, machines, migration_listing, migrations},
    listing::{Listing, NoSuchColumn},
    live::Canvas,
    nodes,
    snapshot::Snapshot,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::sleep,
};

use crate::{
    arguments::{OutputFormat, Table, Top},
    failure::{CommandError, Exit},
    follow::watching::{Change, watch},
    output, read,
    screen::Screen,
};

/// Pause between two tables, because each table reads all objects.
const PAUSE: Duration = Duration::from_secs(2);

/// Prints a table. With `--watch`, it is printed again after each change until the command is interrupted.
///
/// # Errors
/// If nodes or instances cannot be read, the table has no such column, or the output cannot be written.
pub(crate) async fn print(
    client: &Client,
    options: &Top,
    screen: Option<Screen>,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let now = clock::now();
    let snapshot = read::snapshot(client, now).await?;
    if options.output == OutputFormat::Json {
        json_table(options.table, &snapshot, out)?;
        return Ok(Exit::Done);
    }
    let lines = listing(options, &snapshot, now)?.lines();
    if !options.watch {
        for line in lines {
            writeln!(out, "{line}")?;
        }
        return Ok(Exit::Done);
    }
    again(client, options, lines, screen, out).await
}

/// Returns the requested table.
fn listing(options: &Top, snapshot: &Snapshot, now: Timestamp) -> Result<Listing, CommandError> {
    let mut listing = match options.table {
        Table::Nodes => nodes::listing(&nodes::rows(snapshot), now),
        Table::Vms => machine_listing(&machines(snapshot), now),
        Table::Migrations => migration_listing(&migrations(snapshot), now),
    };
    if let Some(column) = &options.sort_by {
        listing
            .sort(column)
            .map_err(|NoSuchColumn { name, allowed }| CommandError::NoSuchColumn { name, allowed })?;
    }
    Ok(listing)
}

fn json_table(table: Table, snapshot: &Snapshot, out: &mut dyn Write) -> Result<(), CommandError> {
    fn items(kind: &str, rows: &impl Serialize, snapshot: &Snapshot, out: &mut dyn Write) -> std::io::Result<()> {
        output::document(out, kind, &json!({"items": rows, "unread": snapshot.unread}))
    }
    match table {
        Table::Nodes => items("NodeList", &nodes::rows(snapshot), snapshot, out)?,
        Table::Vms => items("VirtualMachineList", &machines(snapshot), snapshot, out)?,
        Table::Migrations => items("MigrationList", &migrations(snapshot), snapshot, out)?,
    }
    Ok(())
}

/// Prints the table again after each change. A terminal shows it in place of the previous one, other outputs receive
/// only the new rows.
async fn again(
    client: &Client,
    options: &Top,
    mut lines: Vec<String>,
    mut screen: Option<Screen>,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let (sender, mut changed) = unbounded_channel();
    let mut watches = JoinSet::new();
    watches.spawn(watch(Api::<Node>::all(client.clone()), None, notes(sender.clone())));
    watches.spawn(watch(
        Api::<Hypervisor>::all(client.clone()),
        None,
        notes(sender.clone()),
    ));
    let instances = Api::<VirtualMachineInstance>::all(client.clone());
    watches.spawn(watch(instances, None, notes(sender.clone())));
    let migrations = Api::<VirtualMachineInstanceMigration>::all(client.clone());
    watches.spawn(watch(migrations, None, notes(sender)));
    let (mut interrupt, mut resized) = (signal(SignalKind::interrupt())?, signal(SignalKind::window_change())?);
    let mut printed = HashSet::new();
    loop {
        match &mut screen {
            Some(screen) => {
                let canvas = screen.canvas();
                screen.draw(fitting(&lines, canvas), canvas, out)?;
            }
            None => {
                for line in lines.iter().filter(|line| !printed.contains(*line)) {
                    writeln!(out, "{line}")?;
                }
                out.flush()?;
                printed = lines.iter().cloned().collect();
            }
        }
        tokio::select! {
            failure = changed.recv() => if let Some(Some(failure)) = failure { return Err(failure) },
            _ = resized.recv() => continue,
            _ = interrupt.recv() => return Ok(Exit::Done),
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = interrupt.recv() => return Ok(Exit::Done),
        }
        // The next table includes all changes up to now.
        while let Ok(note) = changed.try_recv() {
            if let Some(failure) = note {
                return Err(failure);
            }
        }
        let now = clock::now();
        // The API server may be restarting, so the last table stays.
        match read::snapshot(client, now).await {
            Ok(snapshot) => lines = listing(options, &snapshot, now)?.lines(),
            Err(failure) if failure.exit() == Exit::NotReached => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// Returns a function that reports that something has changed, or the error that ends the watch.
fn notes<K>(sender: UnboundedSender<Option<CommandError>>) -> impl Fn(Change<K>) -> bool {
    move |change| {
        sender
            .send(match change {
                Change::Failed(failure) => Some(failure),
                _ => None,
            })
            .is_ok()
    }
}

/// Returns the lines that fit on a terminal. A line that is wider than the terminal occupies several rows.
fn fitting(lines: &[String], canvas: Canvas) -> Vec<String> {
    let rows = |line: &String| line.chars().count().max(1).div_ceil(canvas.width.max(1));
    let total: usize = lines.iter().map(rows).sum();
    if total <= canvas.height {
        return lines.to_vec();
    }
    let mut left = canvas.height.saturating_sub(1);
    let mut shown: Vec<String> = Vec::new();
    for line in lines {
        let Some(rest) = left.checked_sub(rows(line)) else {
            break;
        };
        left = rest;
        shown.push(line.clone());
    }
    let hidden = lines.len() - shown.len();
    shown.push(format!("and {hidden} more"));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_ends_where_the_terminal_does() {
        let lines: Vec<String> = ["NODE", "a", "worker-1 with a long row", "c"].map(str::to_owned).into();
        for (width, height, expected) in [
            (80, 4, &["NODE", "a", "worker-1 with a long row", "c"][..]),
            (80, 3, &["NODE", "a", "and 2 more"]),
            (12, 5, &["NODE", "a", "worker-1 with a long row", "c"]),
            (12, 4, &["NODE", "a", "and 2 more"]),
        ] {
            let canvas = Canvas {
                width,
                height,
                colour: false,
            };
            assert_eq!(fitting(&lines, canvas), expected, "{width} {height}");
        }
    }
}
