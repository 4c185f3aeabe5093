//! A tunnel's process, and the conversation with it that an agent has.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::UnixStream,
    process::{Child, Command},
};
use tokio_util::codec::{Framed, LinesCodec};

use crate::{
    guest::NAME,
    pod::{Pod, UID},
};

/// UID of the pod of the tunnel.
const TUNNELS_POD: &str = "5c0f6a1e-3f0e-4d0c-9d7a-2f5f1d0c7b11";
/// Most bytes of a line, as for agents.
const LINE: usize = 1024 * 1024;
/// Interval between two checks of whether a process listens already.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// `drydock-agent tunnel`. It is killed with the value.
pub(crate) struct Tunnel {
    process: Child,
    log: PathBuf,
    lines: Framed<UnixStream, LinesCodec>,
    /// Number of the last call.
    id: u64,
    /// The last reported states of its sessions.
    sessions: Value,
}

impl Tunnel {
    /// One for guests of this pod.
    pub(crate) async fn start(pod: &Pod) -> Self {
        let sockets = pod.scratch.join("tunnels");
        let log = pod.scratch.join("tunnel-log");
        let socket = sockets.join(format!("{TUNNELS_POD}.sock"));
        let _ = fs::remove_file(&socket);
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_drydock-agent"), "tunnel"])
            .arg("--kubelet-dir")
            .arg(pod.scratch.join("kubelet"))
            .arg("--socket-dir")
            .arg(&sockets)
            .args([
                "--pod-uid",
                TUNNELS_POD,
                "--advertise-address",
                "127.0.0.1",
                "--port",
                "0",
            ])
            .args(["--metrics-bind-address", "127.0.0.1:0", "--log-level", "debug"])
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(File::options().append(true).create(true).open(&log).unwrap())
            .stderr(File::options().append(true).create(true).open(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(&socket).await {
                break stream;
            }
            if let Some(ended) = process.try_wait().unwrap() {
                panic!("{ended}\n{}", fs::read_to_string(&log).unwrap());
            }
            tokio::time::sleep(TRY_AGAIN).await;
        };
        Self {
            process,
            log,
            lines: Framed::new(stream, LinesCodec::new_with_max_length(LINE)),
            id: 0,
            sessions: Value::Null,
        }
    }

    /// Kills it, as a node that loses power does.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Returns its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Makes a session, and gives its fingerprint and address.
    pub(crate) async fn prepare(&mut self, migration: &str, role: &str) -> Value {
        let spec = json!({"migration": migration, "role": role, "podUid": UID, "domain": NAME});
        let reply = self.call(json!({ "prepare": spec })).await;
        reply["prepared"].clone()
    }

    /// Calls it, and returns the result.
    pub(crate) async fn call(&mut self, call: Value) -> Value {
        self.id += 1;
        let request = json!({"id": self.id, "call": call}).to_string();
        self.lines.send(request).await.unwrap();
        loop {
            let reply = self.receive().await;
            if reply["id"] == self.id {
                return reply["result"].clone();
            }
        }
    }

    /// The same for the work that is done.
    pub(crate) async fn done(&mut self, call: Value) {
        let reply = self.call(call).await;
        assert_eq!(reply, json!({"done": {}}), "{}", self.log());
    }

    /// Reads the next line. Returns the response to a call, if it is one.
    async fn receive(&mut self) -> Value {
        let line = self.lines.next().await;
        let Some(Ok(line)) = line else {
            panic!("{line:?}\n{}", self.log());
        };
        let mut message: Value = serde_json::from_str(&line).unwrap();
        if message["sessions"].is_array() {
            self.sessions = message["sessions"].take();
        }
        message["answer"].take()
    }

    /// A session as it is now.
    pub(crate) async fn now(&mut self, migration: &str) -> Value {
        let role = self.session(migration)["role"].clone();
        // Pending reports come before any response.
        self.prepare(migration, role.as_str().unwrap()).await;
        self.session(migration)
    }

    /// Returns the last reported state of a session.
    fn session(&self, migration: &str) -> Value {
        let sessions = self.sessions.as_array().into_iter().flatten();
        let mut found = sessions.filter(|session| session["migration"] == migration);
        found.next().cloned().unwrap_or_default()
    }

    /// Waits until it reports such a state of a session.
    pub(crate) async fn until(&mut self, migration: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        loop {
            let session = self.session(migration);
            if is_so(&session) {
                return session;
            }
            self.receive().await;
        }
    }
}
