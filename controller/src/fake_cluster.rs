//! A simulated API server that stores objects, for tests of the effects of failed writes.
//!
//! [`write_faults`] runs the scenario of a task with this API server, once for each write and each kind of failure.

pub(crate) mod lost_leadership;
pub(crate) mod write_faults;

use std::{any::Any, collections::BTreeMap};

use drydock_runtime::{
    clock,
    fake::{OpenWatch, ReceivedRequest, WriteFault},
};
use http::Method;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Objects of a cluster, and the writes that it has received.
#[derive(Default)]
pub(crate) struct FakeCluster {
    /// Objects by their paths.
    objects: BTreeMap<String, Value>,
    /// Last applied configuration by the path with subresource and the field manager.
    applied: BTreeMap<(String, String), Value>,
    version: u64,
    /// Received writes, such as `PATCH pods/web/status`.
    pub(crate) writes: Vec<String>,
    /// Executed creations and deletions.
    pub(crate) changes: Vec<String>,
    /// Path of the object that another writer has replaced.
    pub(crate) replaced: Option<String>,
    watches: Vec<ServedWatch>,
    without_response: Vec<Box<dyn Any>>,
}

/// A served watch, and the objects that it has shown by their paths.
struct ServedWatch {
    of: ResourcePath,
    stream: OpenWatch,
    shown: BTreeMap<String, Value>,
}

/// Components of an API path.
#[derive(Clone, Debug)]
struct ResourcePath {
    /// Group and version of the API.
    prefix: String,
    namespace: Option<String>,
    resource: String,
    name: Option<String>,
    subresource: Option<String>,
}

/// Status code and reason of an error.
type Refusal = (u16, &'static str);

/// UID of an object that another writer has created to replace an object with the same name.
pub(crate) const REPLACEMENT: &str = "uid-replacement";

const CONFLICT: Refusal = (409, "Conflict");
const NOT_FOUND: Refusal = (404, "NotFound");

impl ResourcePath {
    fn parse(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (prefix, rest) = parts.split_at(if parts[0] == "api" { 2 } else { 3 });
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let part = |index: usize| rest.get(index).map(|part| (*part).to_owned());
        Self {
            prefix: prefix.join("/"),
            namespace,
            resource: part(0).unwrap_or_default(),
            name: part(1),
            subresource: part(2),
        }
    }

    /// Returns the path of the object with this name, without a subresource.
    fn object(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("/{}/namespaces/{namespace}/{}/{name}", self.prefix, self.resource),
            None => format!("/{}/{}/{name}", self.prefix, self.resource),
        }
    }

    /// Returns whether a list of this collection contains an object.
    fn lists(&self, object: &str) -> bool {
        let of = Self::parse(object);
        of.prefix == self.prefix
            && of.resource == self.resource
            && (self.namespace.is_none() || of.namespace == self.namespace)
    }
}

impl FakeCluster {
    /// Creates a cluster with these objects, each with the path of its collection.
    pub(crate) fn with(objects: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let mut cluster = Self::default();
        for (collection, object) in objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            let path = ResourcePath::parse(collection).object(name);
            cluster.put(&path, object);
        }
        cluster
    }

    /// Returns the object with this path.
    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    /// Returns the objects of a kind, by the plural name of its resource.
    pub(crate) fn all<K: DeserializeOwned>(&self, resource: &str) -> Vec<K> {
        let objects = self.objects.iter();
        let of_kind = objects.filter(|(path, _)| ResourcePath::parse(path).resource == resource);
        of_kind
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    /// Changes an object like another writer. Does nothing if the object does not exist.
    pub(crate) fn change(&mut self, path: &str, change: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.objects.get(path).cloned() {
            change(&mut object);
            self.put(path, object);
        }
    }

    /// Returns the paths of the objects of a resource.
    pub(crate) fn paths(&self, resource: &str) -> Vec<String> {
        let paths = self.objects.keys();
        paths
            .filter(|path| ResourcePath::parse(path).resource == resource)
            .cloned()
            .collect()
    }

    /// Removes an object and the objects that it owns.
    pub(crate) fn remove(&mut self, path: &str) {
        let Some(removed) = self.objects.remove(path) else {
            return;
        };
        let is_owned = |object: &Value| {
            let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            owners.any(|owner| owner["uid"] == removed["metadata"]["uid"])
        };
        let owned = self.objects.iter().filter(|(_, object)| is_owned(object));
        let owned: Vec<String> = owned.map(|(path, _)| path.clone()).collect();
        owned.iter().for_each(|path| self.remove(path));
        self.show_changes();
    }

    /// Returns the objects without versions and times, which differ between runs.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, Value> {
        let objects = self.objects.iter().map(|(path, object)| {
            let mut object = object.clone();
            without_times(&mut object);
            (without_digest(path), object)
        });
        objects.collect()
    }

    /// Responds to a request. `failing` is the number of the write that fails, and its fault. Returns whether the
    /// request was that write.
    pub(crate) fn serve(&mut self, request: ReceivedRequest, failing: Option<(usize, WriteFault)>) -> bool {
        if request.query().contains("watch=") {
            self.watch(request);
            return false;
        }
        let is_write = request.method != Method::GET && !request.query().contains("dryRun=");
        if is_write {
            self.writes.push(label(&request));
        }
        let fault = failing.filter(|(number, _)| is_write && self.writes.len() == number + 1);
        let Some((_, fault)) = fault else {
            match self.execute(&request) {
                Ok(object) => request.with(&object),
                Err((code, reason)) => request.refuse(code, reason),
            }
            return false;
        };
        if fault.is_executed() {
            let _ = self.execute(&request);
        }
        if fault == WriteFault::Conflict {
            self.conflict(&request);
        }
        request.fail(fault);
        true
    }

    /// Simulates a faster writer, which changes the object. If the request only has a UID as its precondition, the
    /// object is replaced.
    fn conflict(&mut self, request: &ReceivedRequest) {
        let path = ResourcePath::parse(request.path());
        let Some(place) = path.name.as_deref().map(|name| path.object(name)) else {
            return;
        };
        let wanted = &request.body["preconditions"];
        let is_by_uid =
            request.method == Method::DELETE && wanted["resourceVersion"].is_null() && !wanted["uid"].is_null();
        if is_by_uid {
            self.replaced = self.objects.contains_key(&place).then(|| place.clone());
            self.change(&place, |object| {
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata.retain(|key, _| ["name", "namespace"].contains(&key.as_str()));
                metadata.insert("uid".into(), json!(REPLACEMENT));
            });
        } else {
            self.bump(&place);
        }
    }

    /// If the request is the write with this number, executes it if `executed`, and does not respond. Returns any other
    /// request.
    pub(crate) fn cut(&mut self, request: ReceivedRequest, number: usize, executed: bool) -> Option<ReceivedRequest> {
        let is_write = request.method != Method::GET && !request.query().contains("dryRun=");
        if !is_write || self.writes.len() != number {
            return Some(request);
        }
        self.writes.push(label(&request));
        if executed {
            let _ = self.execute(&request);
        }
        self.without_response.push(Box::new(request.lose()));
        None
    }

    fn put(&mut self, path: &str, mut object: Value) {
        let stored = self.objects.get(path);
        object["metadata"]["resourceVersion"] =
            stored.map_or(Value::Null, |stored| stored["metadata"]["resourceVersion"].clone());
        if stored == Some(&object) {
            return;
        }
        self.objects.insert(path.to_owned(), object);
        self.bump(path);
    }

    /// Sets a new resource version of an object.
    fn bump(&mut self, path: &str) {
        self.version += 1;
        if let Some(object) = self.objects.get_mut(path) {
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
        self.show_changes();
    }

    fn execute(&mut self, request: &ReceivedRequest) -> Result<Value, Refusal> {
        let path = ResourcePath::parse(request.path());
        let changes_nothing = request.query().contains("dryRun=");
        match (request.method.as_str(), &path.name) {
            ("GET", None) => Ok(self.list(&path, request.query())),
            ("GET", Some(name)) => self.objects.get(&path.object(name)).cloned().ok_or(NOT_FOUND),
            ("POST", Some(name)) => {
                // POST to an object is an eviction.
                let pod = path.object(name);
                self.objects.remove(&pod).ok_or(NOT_FOUND)?;
                self.changes.push(label(request));
                self.show_changes();
                Ok(success())
            }
            ("POST", None) => self.create(&path, request),
            ("DELETE", None) => {
                self.delete_all(&path, request);
                Ok(success())
            }
            ("DELETE", Some(name)) => self.delete(&path.object(name), request),
            ("PATCH" | "PUT", Some(name)) => {
                let object = path.object(name);
                let patched = self.patched(&path, &object, request)?;
                if changes_nothing {
                    return Ok(patched);
                }
                self.put(&object, patched);
                let stored = self.objects[&object].clone();
                self.remove_finalized(&object);
                Ok(stored)
            }
            _ => Err((405, "MethodNotAllowed")),
        }
    }

    fn list(&self, path: &ResourcePath, query: &str) -> Value {
        let wanted = selector(query);
        let matches = |object: &&Value| {
            wanted
                .iter()
                .all(|(key, value)| object["metadata"]["labels"][key] == json!(value))
        };
        let objects = self.objects.iter().filter(|(object, _)| path.lists(object));
        let items: Vec<&Value> = objects.map(|(_, object)| object).filter(matches).collect();
        json!({
            "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": self.version.to_string()},
            "items": items,
        })
    }

    fn create(&mut self, path: &ResourcePath, request: &ReceivedRequest) -> Result<Value, Refusal> {
        let mut object = request.body.clone();
        let name = object["metadata"]["name"]
            .as_str()
            .expect("names are chosen by the task")
            .to_owned();
        let place = path.object(&name);
        if self.objects.contains_key(&place) {
            return Err((409, "AlreadyExists"));
        }
        let change = label(request);
        let earlier = self.changes.iter().filter(|other| **other == change).count();
        object["metadata"]["uid"] = json!(format!("uid-{name}-{earlier}"));
        object["metadata"]["namespace"] = json!(path.namespace);
        object["metadata"]["creationTimestamp"] = json!(clock::now().to_string());
        self.changes.push(change);
        self.put(&place, object);
        Ok(self.objects[&place].clone())
    }

    fn delete(&mut self, place: &str, request: &ReceivedRequest) -> Result<Value, Refusal> {
        let object = self.objects.get(place).ok_or(NOT_FOUND)?;
        is_same(object, &request.body["preconditions"])?;
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return Ok(object.clone());
        }
        let mut deleted = object.clone();
        deleted["metadata"]["deletionTimestamp"] = json!(clock::now().to_string());
        self.changes.push(label(request));
        self.put(place, deleted);
        let stored = self.objects[place].clone();
        Ok(if self.remove_finalized(place) {
            success()
        } else {
            stored
        })
    }

    /// Deletes the objects of a collection, which have no finalizers.
    fn delete_all(&mut self, path: &ResourcePath, request: &ReceivedRequest) {
        let all = self.objects.keys().filter(|object| path.lists(object));
        let all: Vec<String> = all.cloned().collect();
        if !all.is_empty() {
            self.changes.push(label(request));
        }
        all.iter().for_each(|object| self.remove(object));
    }

    /// Removes an object that is being deleted and has no finalizers. Returns whether it was removed.
    fn remove_finalized(&mut self, place: &str) -> bool {
        let metadata = &self.objects[place]["metadata"];
        let is_kept = metadata["finalizers"].as_array().is_some_and(|kept| !kept.is_empty());
        let is_gone = !metadata["deletionTimestamp"].is_null() && !is_kept;
        if is_gone {
            self.remove(place);
        }
        is_gone
    }

    fn patched(&mut self, path: &ResourcePath, place: &str, request: &ReceivedRequest) -> Result<Value, Refusal> {
        let applies = request.content_type.contains("apply-patch");
        let stored = match self.objects.get(place) {
            Some(stored) => stored.clone(),
            None if applies && path.subresource.is_none() => json!({"metadata": {"uid": "uid-applied"}}),
            None => return Err(NOT_FOUND),
        };
        let mut patched = stored.clone();
        if request.content_type.contains("json-patch+json") {
            let patch: json_patch::Patch = serde_json::from_value(request.body.clone()).unwrap();
            json_patch::patch(&mut patched, &patch).map_err(|_| (422, "Invalid"))?;
            return Ok(patched);
        }
        let mut body = request.body.clone();
        is_same(&stored, &body["metadata"])?;
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        if request.method == Method::PUT {
            // Fields that a replacement cannot change.
            for field in ["uid", "namespace", "creationTimestamp", "deletionTimestamp"] {
                if let Some(kept) = stored["metadata"].get(field) {
                    body["metadata"][field] = kept.clone();
                }
            }
            return Ok(body);
        }
        if path.subresource.as_deref() == Some("ephemeralcontainers") {
            let added = body["spec"]["ephemeralContainers"].clone();
            patched["spec"]["ephemeralContainers"] = added;
        } else if applies {
            let manager = request.query().to_owned();
            let before = self.applied.insert((request.path().to_owned(), manager), body.clone());
            if let Some(before) = before {
                withdraw(&mut patched, &before, &body);
            }
            apply(&mut patched, &body);
        } else if request.content_type.contains("strategic-merge-patch") {
            merge_strategically(&mut patched, &body);
        } else {
            json_patch::merge(&mut patched, &body);
        }
        Ok(patched)
    }

    fn watch(&mut self, request: ReceivedRequest) {
        let (of, lists) = (
            ResourcePath::parse(request.path()),
            request.query().contains("sendInitialEvents=true"),
        );
        let stream = request.open();
        let known = self.objects.iter().filter(|(object, _)| of.lists(object));
        let known: BTreeMap<String, Value> = known.map(|(path, object)| (path.clone(), object.clone())).collect();
        if lists {
            known.values().for_each(|object| stream.send("ADDED", object));
            stream.end_of_list(&self.version.to_string());
        }
        self.watches.push(ServedWatch {
            of,
            stream,
            shown: known,
        });
    }

    /// Sends the events of all changes to the watches.
    fn show_changes(&mut self) {
        self.watches.retain(|watch| !watch.stream.is_closed());
        for watch in &mut self.watches {
            let now = self.objects.iter().filter(|(object, _)| watch.of.lists(object));
            let now: BTreeMap<String, Value> = now.map(|(path, object)| (path.clone(), object.clone())).collect();
            for (path, object) in &now {
                match watch.shown.get(path) {
                    None => watch.stream.send("ADDED", object),
                    Some(before) if before != object => watch.stream.send("MODIFIED", object),
                    Some(_) => {}
                }
            }
            for (_, object) in watch.shown.iter().filter(|(path, _)| !now.contains_key(*path)) {
                watch.stream.send("DELETED", object);
            }
            watch.shown = now;
        }
    }
}

/// Returns a write as method, resource, name and subresource.
fn label(request: &ReceivedRequest) -> String {
    let path = ResourcePath::parse(request.path());
    let created = request.body["metadata"]["name"].as_str().unwrap_or_default();
    let name = path.name.as_deref().unwrap_or(created);
    let subresource = path.subresource.map(|name| format!("/{name}")).unwrap_or_default();
    without_digest(&format!("{} {}/{name}{subresource}", request.method, path.resource))
}

/// Replaces the digest in the name of a drain's migration, because it depends on the time.
fn without_digest(text: &str) -> String {
    const NAME: &str = "kubevirt-evacuation-";
    match text.split_once(NAME) {
        Some((before, digest)) => format!(
            "{before}{NAME}*{}",
            digest.trim_start_matches(|c: char| c.is_ascii_hexdigit())
        ),
        None => text.to_owned(),
    }
}

fn success() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Success"})
}

/// Refuses a write if the UID or version in it differs from those of the object.
fn is_same(object: &Value, wanted: &Value) -> Result<(), Refusal> {
    let is = |field: &str| wanted[field].is_null() || wanted[field] == object["metadata"][field];
    (is("uid") && is("resourceVersion")).then_some(()).ok_or(CONFLICT)
}

/// Returns the labels that a query requires.
fn selector(query: &str) -> Vec<(String, String)> {
    let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector="));
    let selector = selector
        .unwrap_or_default()
        .replace("%3D", "=")
        .replace("%2F", "/")
        .replace("%2C", ",");
    let terms = selector.split(',').filter_map(|term| term.split_once('='));
    terms.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Merges a configuration that a manager applies: maps by key, and lists of conditions by type.
fn apply(stored: &mut Value, wanted: &Value) {
    match (stored, wanted) {
        (Value::Object(stored), Value::Object(wanted)) => {
            for (key, value) in wanted {
                apply(stored.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(stored), Value::Array(wanted)) if wanted.iter().any(|item| item["type"].is_string()) => {
            for item in wanted {
                match stored.iter_mut().find(|other| other["type"] == item["type"]) {
                    Some(other) => apply(other, item),
                    None => stored.push(item.clone()),
                }
            }
        }
        (stored, wanted) => *stored = wanted.clone(),
    }
}

/// Merges a strategic merge patch. Lists are merged by name or type.
fn merge_strategically(stored: &mut Value, patch: &Value) {
    match (stored, patch) {
        (Value::Object(stored), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    stored.remove(key);
                } else {
                    merge_strategically(stored.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(stored), Value::Array(patch)) => {
            for item in patch {
                let is_same = |other: &Value| other["name"] == item["name"] && other["type"] == item["type"];
                match stored.iter().position(is_same) {
                    Some(index) if item["$patch"] == "delete" => _ = stored.remove(index),
                    Some(index) => merge_strategically(&mut stored[index], item),
                    None if item["$patch"] == "delete" => {}
                    None => stored.push(item.clone()),
                }
            }
        }
        (stored, patch) => *stored = patch.clone(),
    }
}

/// Removes fields that a manager has applied before and does not apply now.
fn withdraw(stored: &mut Value, before: &Value, now: &Value) {
    let (Value::Object(stored), Value::Object(before)) = (stored, before) else {
        return;
    };
    let none = Map::new();
    let now = now.as_object().unwrap_or(&none);
    let no_items = Vec::new();
    for (key, value) in before {
        let is_typed = value
            .as_array()
            .is_some_and(|items| items.iter().any(|item| item["type"].is_string()));
        match (now.get(key), stored.get_mut(key)) {
            (now, Some(Value::Array(stored))) if is_typed => {
                let now = now.and_then(Value::as_array).unwrap_or(&no_items);
                let was_applied = |item: &Value| {
                    let mut before = value.as_array().into_iter().flatten();
                    before.any(|other| other["type"].is_string() && other["type"] == item["type"])
                };
                stored.retain(|item| !was_applied(item) || now.iter().any(|other| other["type"] == item["type"]));
            }
            (Some(now), Some(stored)) => withdraw(stored, value, now),
            // A field with another value belongs to another manager.
            (None, Some(same)) if same == value => _ = stored.remove(key),
            _ => {}
        }
    }
}

/// Removes versions and empty values, and replaces all times with the same one.
fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("resourceVersion");
            fields.values_mut().for_each(without_times);
            fields.retain(|_, value| value != &json!([]) && value != &json!({}));
        }
        Value::Array(items) => items.iter_mut().for_each(without_times),
        Value::String(text) if text.parse::<Timestamp>().is_ok() => "a time".clone_into(text),
        Value::String(text) => *text = without_digest(text),
        _ => {}
    }
}
