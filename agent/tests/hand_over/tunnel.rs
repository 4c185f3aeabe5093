//! A tunnel's process, and the protocol with which an agent calls it.

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

/// UID of the tunnel's pod.
const TUNNELS_POD: &str = "5c0f6a1e-3f0e-4d0c-9d7a-2f5f1d0c7b11";
/// Maximum length of a line in bytes, as for agents.
const LINE: usize = 1024 * 1024;
/// Interval between two checks whether the process is listening.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// A process of `drydock-agent tunnel`. It is killed when the value is dropped.
pub(crate) struct Tunnel {
    process: Child,
    log: PathBuf,
    lines: Framed<UnixStream, LinesCodec>,
    /// ID of the last call.
    id: u64,
    /// Last reported states of the tunnel's sessions.
    sessions: Value,
}

impl Tunnel {
    /// Starts a tunnel for guests of this pod.
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

    /// Kills the process, as a node that loses power does.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Returns the log of the tunnel.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Creates a session, and returns its fingerprint and address.
    pub(crate) async fn prepare(&mut self, migration: &str, role: &str) -> Value {
        let spec = json!({"migration": migration, "role": role, "podUid": UID, "domain": NAME});
        let reply = self.call(json!({ "prepare": spec })).await;
        reply["prepared"].clone()
    }

    /// Calls the tunnel, and returns the result.
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

    /// Calls the tunnel, and asserts that the call was executed.
    pub(crate) async fn done(&mut self, call: Value) {
        let reply = self.call(call).await;
        assert_eq!(reply, json!({"done": {}}), "{}", self.log());
    }

    /// Reads the next line. Returns the response if the line is the response to a call, else `null`.
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

    /// Returns the current state of a session.
    pub(crate) async fn now(&mut self, migration: &str) -> Value {
        let role = self.session(migration)["role"].clone();
        // Pending reports of states come before any response.
        self.prepare(migration, role.as_str().unwrap()).await;
        self.session(migration)
    }

    /// Returns the last reported state of a session.
    fn session(&self, migration: &str) -> Value {
        let sessions = self.sessions.as_array().into_iter().flatten();
        let mut found = sessions.filter(|session| session["migration"] == migration);
        found.next().cloned().unwrap_or_default()
    }

    /// Waits until the reported state of a session satisfies `is_so`.
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
