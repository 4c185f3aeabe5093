//! Server of the tunnel for the agents of its node.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use drydock_runtime::{CancellationToken, Process, chain};
use futures::{SinkExt, StreamExt};
use thiserror::Error;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
};
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};
use tracing::{debug, info, warn};

use super::{
    local::{CallResult, LINE, ServerMessage, SessionState, TunnelRequest},
    sessions::TunnelSessions,
    streams::ACCEPT_AGAIN,
    tunnel_refusal::CallRefusal,
};

/// Suffix of the names of tunnels' sockets.
pub(super) const SUFFIX: &str = ".sock";

/// Error: the socket for agents could not be opened.
#[derive(Debug, Error)]
#[error("could not listen on {}", path.display())]
pub(crate) struct SocketError {
    path: PathBuf,
    source: io::Error,
}

/// Listens for agents at `<pod UID>.sock` in `folder`, until the process has drained.
///
/// # Errors
/// If the folder cannot be created or written to.
pub(super) fn serve(
    sessions: &TunnelSessions,
    folder: &Path,
    pod_uid: &str,
    process: &Process,
) -> Result<(), SocketError> {
    let path = folder.join(format!("{pod_uid}{SUFFIX}"));
    let listener = listen(folder, pod_uid, &path).map_err(|source| SocketError {
        path: path.clone(),
        source,
    })?;
    info!(path = %path.display(), "listening for agents");
    let (sessions, of) = (sessions.clone(), process.clone());
    process.spawn("local socket", async move {
        let drained = sessions.drained();
        while let Some(accepted) = drained.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    let (sessions, drained) = (sessions.clone(), drained.clone());
                    of.spawn("agent", async move {
                        if let Err(error) = converse(&sessions, stream, &drained).await {
                            debug!(error = %chain(&error), "the connection of an agent has ended");
                        }
                    });
                }
                Err(error) => {
                    // For example, the process has too many open files.
                    warn!(error = %chain(&error), "could not accept a connection of an agent");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
        let _ = fs::remove_file(&path);
    });
    Ok(())
}

/// Creates the socket under a temporary name first, so that a socket with the final name always has a listener.
fn listen(folder: &Path, pod_uid: &str, path: &Path) -> io::Result<UnixListener> {
    fs::create_dir_all(folder)?;
    let new = folder.join(format!(".{pod_uid}.new"));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}

type ServerLines = Framed<UnixStream, LinesCodec>;

/// Serves one agent: executes its calls and sends it the state of all sessions.
async fn converse(
    sessions: &TunnelSessions,
    stream: UnixStream,
    drained: &CancellationToken,
) -> Result<(), LinesCodecError> {
    let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(LINE));
    let mut published = sessions.published();
    send_sessions(&mut lines, &mut published).await?;
    loop {
        tokio::select! {
            biased;
            changed = published.changed() => {
                if changed.is_ok() {
                    send_sessions(&mut lines, &mut published).await?;
                }
            }
            () = drained.cancelled() => return Ok(()),
            line = lines.next() => {
                let Some(line) = line.transpose()? else {
                    return Ok(());
                };
                let (id, result) = respond(sessions, &line);
                // Changes caused by the call are sent before its response.
                sessions.publish_states();
                if published.has_changed().unwrap_or(false) {
                    send_sessions(&mut lines, &mut published).await?;
                }
                send(&mut lines, &ServerMessage::Response { id, result }).await?;
            }
        }
    }
}

fn respond(sessions: &TunnelSessions, line: &str) -> (u64, CallResult) {
    let (id, called) = match serde_json::from_str::<TunnelRequest>(line) {
        Ok(TunnelRequest { id, call }) => (id, sessions.call(call)),
        Err(error) => (id_of(line), Err(CallRefusal::NotUnderstood(error.to_string()))),
    };
    let result = called.unwrap_or_else(|refusal| CallResult::Refused {
        reason: refusal.reason().to_owned(),
        message: chain(&refusal).to_string(),
    });
    (id, result)
}

/// Returns the ID of a call that could not be parsed.
fn id_of(line: &str) -> u64 {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    value["id"].as_u64().unwrap_or_default()
}

async fn send_sessions(
    lines: &mut ServerLines,
    published: &mut watch::Receiver<Vec<SessionState>>,
) -> Result<(), LinesCodecError> {
    let sessions = published.borrow_and_update().clone();
    send(lines, &ServerMessage::Sessions(sessions)).await
}

async fn send(lines: &mut ServerLines, server_message: &ServerMessage) -> Result<(), LinesCodecError> {
    let line = serde_json::to_string(server_message).map_err(io::Error::from)?;
    lines.send(line).await
}
