use std::{fs, os::unix::net::UnixListener, sync::Arc};

use drydock_runtime::Process;

use super::world::Node;
use crate::tunnel::{
    local::Role,
    tunnels::{KnownSessions, Tunnels},
};

const FIRST: &str = "5eed0000-0000-4000-8000-000000000005";
const SECOND: &str = "5eed0000-0000-4000-8000-000000000006";

async fn until(tunnels: &Tunnels, wanted: impl FnMut(&KnownSessions) -> bool) -> KnownSessions {
    tunnels.sessions().wait_for(wanted).await.unwrap().clone()
}

#[tokio::test]
async fn sessions_of_all_tunnels_of_the_node_are_known() {
    let old = Node::new().await;
    old.client.prepare(old.spec(FIRST, Role::Target)).await.unwrap();
    let folder = old.folder.0.join("tunnels");
    // Files that ended processes have left.
    drop(UnixListener::bind(folder.join("dead.sock")).unwrap());
    fs::write(folder.join("notes.txt"), "not a tunnel").unwrap();
    let process = Process::new();
    let tunnels = Tunnels::follow(&folder, "new", &process).unwrap();
    let known = until(&tunnels, |known| known.sessions.contains_key(FIRST)).await;
    // The agent's own tunnel does not exist yet.
    assert!(known.own.is_none() && !known.is_complete);
    let new = Node::on(Arc::clone(&old.folder), "new", |port| port).await;
    let known = until(&tunnels, |known| known.is_complete).await;
    let own = known.own.unwrap();
    assert!(!folder.join("dead.sock").exists());
    assert!(folder.join("notes.txt").exists());
    own.prepare(new.spec(SECOND, Role::Target)).await.unwrap();
    assert!(new.state(SECOND).is_some());
    until(&tunnels, |known| known.sessions.len() == 2).await;
    // Each session is closed through the tunnel that carries it.
    let first = tunnels.session(FIRST).unwrap();
    assert_eq!(first.state.role, Role::Target);
    old.process.stop();
    first.tunnel.close(FIRST).await.unwrap();
    let known = until(&tunnels, |known| known.sessions.len() == 1).await;
    assert!(known.sessions.contains_key(SECOND));
    assert!(tunnels.own().is_some());
    process.stop();
}

#[tokio::test]
async fn own_tunnel_is_found_again_after_a_restart() {
    let node = Node::new().await;
    let folder = node.folder.0.join("tunnels");
    let process = Process::new();
    let tunnels = Tunnels::follow(&folder, "own", &process).unwrap();
    until(&tunnels, |known| known.is_complete).await;
    node.client.prepare(node.spec(FIRST, Role::Target)).await.unwrap();
    until(&tunnels, |known| known.sessions.contains_key(FIRST)).await;
    // The tunnel ends like a restarted container: its sessions end too.
    node.client.close(FIRST).await.unwrap();
    node.process.stop();
    until(&tunnels, |known| known.own.is_none()).await;
    let again = Node::on(Arc::clone(&node.folder), "own", |port| port).await;
    let known = until(&tunnels, |known| known.own.is_some()).await;
    assert!(known.is_complete && known.sessions.is_empty());
    assert!(again.client.sessions().borrow().is_empty());
    process.stop();
}
