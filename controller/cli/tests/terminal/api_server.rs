//! An API server with a few objects, with HTTP/1.1 on a port of this machine. It lists the objects, and sends changes
//! to watches.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Objects by the path of their list.
type Objects = Vec<(String, Value)>;

#[derive(Default)]
struct ServerState {
    objects: Objects,
    /// All changes so far. Their number is the resource version of lists.
    changes: Objects,
    watches: Vec<(String, String, Sender<Value>)>,
}

/// The server, which ends with the test process.
pub(crate) struct ApiServer {
    state: Arc<Mutex<ServerState>>,
    kubeconfig: PathBuf,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl ApiServer {
    /// Starts a server with these objects.
    pub(crate) fn start(objects: Objects) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(ServerState {
            objects,
            ..ServerState::default()
        }));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                thread::spawn(move || serve(stream, &shared));
            }
        });
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let kubeconfig = std::env::temp_dir().join(format!("drydock-cli-{}-{number}.yaml", std::process::id()));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: a, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\nusers: [{{name: a, user: {{}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        Self { state, kubeconfig }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.kubeconfig.display().to_string()
    }

    /// Replaces the object with the same name, and sends the new one to all watches of its list.
    pub(crate) fn change(&self, path: &str, object: &Value) {
        let mut state = self.state.lock();
        let name = |object: &Value| object["metadata"]["name"].clone();
        state
            .objects
            .retain(|(list, other)| list != path || name(other) != name(object));
        state.objects.push((path.to_owned(), object.clone()));
        state.changes.push((path.to_owned(), object.clone()));
        let watches = state
            .watches
            .iter()
            .filter(|(list, query, _)| list == path && selects(query, object));
        for (_, _, sender) in watches {
            // The client may have closed the connection.
            let _ = sender.send(modified(object));
        }
    }
}

fn modified(object: &Value) -> Value {
    json!({"type": "MODIFIED", "object": object})
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

/// Returns a parameter of a query.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = query.split('&').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns whether a query's field selector, if it has one, selects an object.
fn selects(query: &str, object: &Value) -> bool {
    let selector = parameter(query, "fieldSelector").map(|selector| selector.replace("%3D", "="));
    selector.is_none_or(|selector| {
        let (field, value) = selector.split_once('=').unwrap();
        object
            .pointer(&format!("/{}", field.replace('.', "/")))
            .and_then(Value::as_str)
            == Some(value)
    })
}

fn serve(mut stream: TcpStream, state: &Mutex<ServerState>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::new();
        while reader.read_line(&mut header).unwrap_or(0) > 2 {
            header.clear();
        }
        let target = request.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if query.contains("watch=true") {
            let (sender, changes) = channel();
            let mut state = state.lock();
            // Changes since the version of the list are sent first.
            let since = parameter(query, "resourceVersion").and_then(|version| version.parse().ok());
            for (list, object) in state.changes.iter().skip(since.unwrap_or(0)) {
                if list == path && selects(query, object) {
                    sender.send(modified(object)).unwrap();
                }
            }
            state.watches.push((path.to_owned(), query.to_owned(), sender));
            drop(state);
            return send_changes(&mut stream, &changes);
        }
        let (items, version): (Vec<Value>, usize) = {
            let state = state.lock();
            let own = state
                .objects
                .iter()
                .filter(|(list, object)| list == path && selects(query, object));
            (own.map(|(_, object)| object.clone()).collect(), state.changes.len())
        };
        let body = json!({"metadata": {"resourceVersion": version.to_string()}, "items": items}).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

fn send_changes(stream: &mut TcpStream, changes: &Receiver<Value>) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).is_err() {
        return;
    }
    while let Ok(change) = changes.recv() {
        let line = format!("{change}\n");
        if stream
            .write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
            .is_err()
        {
            return;
        }
    }
}
