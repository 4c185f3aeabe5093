//! The replies of guest agents: QEMU's guest agent protocol, `qapi-schema.json` of `qga`.
//!
//! ```text
//!  commands() ─▶ libvirt ─▶ guest agent ─▶ one reply, or none, for each ─▶ Replies ─▶ KubeVirt's documents
//! ```
//!
//! Replies come from inside the guest. Content of an unexpected form is omitted, and lists and texts are truncated.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::{
        guest_agent::{
            GuestAgentCommand, GuestAgentInfo, GuestAgentList, GuestDisk, GuestDisks, GuestFilesystem, GuestUser,
            NoMetadata,
        },
        status::GuestOsInfo,
    },
    node_api::GuestReport,
};
use serde_json::Value;

/// The longest list, in elements.
const LONGEST: usize = 1024;
/// Users and file systems in `guestosinfo` (KubeVirt's number).
const IN_SUMMARY: usize = 10;
/// Longest reply that is parsed, in bytes: a guest could have an agent parse megabytes.
const LONGEST_REPLY: usize = 512 << 10;
/// Longest text, in characters.
const LONGEST_TEXT: usize = 256;

/// Commands that an agent must support, or it counts as too old (KubeVirt's list).
const REQUIRED: [&str; 10] = [
    "guest-ping",
    "guest-get-time",
    "guest-info",
    "guest-shutdown",
    "guest-network-get-interfaces",
    "guest-get-fsinfo",
    "guest-get-host-name",
    "guest-get-users",
    "guest-get-timezone",
    "guest-get-osinfo",
];

/// Command that lists the supported commands.
pub const INFO: &str = "guest-info";
/// Command that shows whether the file systems are frozen.
pub const FREEZE_STATUS: &str = "guest-fsfreeze-status";
/// Reply of [`FREEZE_STATUS`], and value of a status.
pub const FROZEN: &str = "frozen";
const OS: &str = "guest-get-osinfo";
const HOST_NAME: &str = "guest-get-host-name";
const TIMEZONE: &str = "guest-get-timezone";
const USERS: &str = "guest-get-users";
const FILESYSTEMS: &str = "guest-get-fsinfo";

/// Returns the commands whose replies a report needs.
pub fn commands(report: GuestReport) -> &'static [&'static str] {
    match report {
        GuestReport::GuestOsInfo => &[INFO, OS, HOST_NAME, TIMEZONE, USERS, FILESYSTEMS, FREEZE_STATUS],
        GuestReport::UserList => &[USERS],
        GuestReport::FilesystemList => &[FILESYSTEMS],
        GuestReport::Screenshot => &[],
    }
}

/// Returns a command as a JSON message for the agent.
pub fn message(command: &str) -> String {
    serde_json::json!({"execute": command}).to_string()
}

/// The replies of an agent, by command.
#[derive(Clone, Debug, Default)]
pub struct Replies(Vec<(String, Value)>);

impl Replies {
    /// Adds the reply to a command, unless it violates the protocol or is too long.
    pub fn add(&mut self, command: &str, reply: &str) {
        if reply.len() > LONGEST_REPLY {
            return;
        }
        let reply = serde_json::from_str::<Value>(reply).ok();
        if let Some(content) = reply.and_then(|reply| reply.get("return").cloned()) {
            self.0.push((command.to_owned(), content));
        }
    }

    /// Returns the document of a report.
    pub fn document(&self, report: GuestReport) -> Value {
        let document = match report {
            GuestReport::GuestOsInfo => serde_json::to_value(self.info()),
            GuestReport::UserList => serde_json::to_value(list(self.users())),
            GuestReport::FilesystemList => serde_json::to_value(list(self.filesystems())),
            GuestReport::Screenshot => Ok(Value::Null),
        };
        document.unwrap_or_default()
    }

    /// Returns whether the agent supports the commands that KubeVirt requires and those in `also`; `None` if it has not
    /// replied.
    pub fn is_supported(&self, also: &BTreeSet<&str>) -> Option<bool> {
        self.of(INFO)?;
        let known = self.supported_commands();
        let supports = |name: &str| known.iter().any(|command| command.enabled && command.name == name);
        Some(REQUIRED.iter().chain(also).all(|name| supports(name)))
    }

    /// Returns whether the file systems are frozen; `None` if the agent has not replied.
    pub fn is_frozen(&self) -> Option<bool> {
        Some(self.of(FREEZE_STATUS)?.as_str()? == FROZEN)
    }

    fn of(&self, command: &str) -> Option<&Value> {
        let mut replies = self.0.iter();
        replies.find(|(of, _)| of == command).map(|(_, reply)| reply)
    }

    fn elements(&self, command: &str) -> impl Iterator<Item = &Value> {
        let list = self.of(command).and_then(Value::as_array);
        list.into_iter().flatten().take(LONGEST)
    }

    fn info(&self) -> GuestAgentInfo {
        let text_of = |command: &str, field: &str| self.of(command).map(|reply| text(reply, field)).unwrap_or_default();
        let os = self.of(OS).unwrap_or(&Value::Null);
        let offset = self.of(TIMEZONE).and_then(|zone| zone["offset"].as_i64());
        GuestAgentInfo {
            guest_agent_version: text_of(INFO, "version"),
            supported_commands: self.supported_commands(),
            hostname: text_of(HOST_NAME, "host-name"),
            os: GuestOsInfo {
                name: some(os, "name"),
                kernel_release: some(os, "kernel-release"),
                version: some(os, "version"),
                pretty_name: some(os, "pretty-name"),
                version_id: some(os, "version-id"),
                kernel_version: some(os, "kernel-version"),
                machine: some(os, "machine"),
                id: some(os, "id"),
            },
            timezone: offset
                .map(|offset| format!("{}, {offset}", text_of(TIMEZONE, "zone")))
                .unwrap_or_default(),
            user_list: self.users().take(IN_SUMMARY).collect(),
            fs_info: GuestDisks {
                disks: self.filesystems().take(IN_SUMMARY).collect(),
            },
            fs_freeze_status: self
                .of(FREEZE_STATUS)
                .and_then(Value::as_str)
                .map(cut)
                .unwrap_or_default(),
        }
    }

    fn supported_commands(&self) -> Vec<GuestAgentCommand> {
        let info = self.of(INFO).unwrap_or(&Value::Null);
        let commands = info["supported_commands"].as_array().into_iter().flatten();
        commands
            .take(LONGEST)
            .map(|command| GuestAgentCommand {
                name: text(command, "name"),
                enabled: command["enabled"].as_bool().unwrap_or(false),
            })
            .collect()
    }

    fn users(&self) -> impl Iterator<Item = GuestUser> {
        self.elements(USERS).map(|user| GuestUser {
            user_name: text(user, "user"),
            domain: text(user, "domain"),
            login_time: user["login-time"].as_f64().unwrap_or(0.0),
        })
    }

    fn filesystems(&self) -> impl Iterator<Item = GuestFilesystem> {
        self.elements(FILESYSTEMS).map(|found| GuestFilesystem {
            disk_name: text(found, "name"),
            mount_point: text(found, "mountpoint"),
            file_system_type: text(found, "type"),
            used_bytes: found["used-bytes"].as_u64().unwrap_or(0),
            total_bytes: found["total-bytes"].as_u64().unwrap_or(0),
            disk: disks(found),
        })
    }
}

fn disks(filesystem: &Value) -> Vec<GuestDisk> {
    let disks = filesystem["disk"].as_array().into_iter().flatten();
    let disks = disks.take(LONGEST).map(|disk| GuestDisk {
        serial: text(disk, "serial"),
        bus_type: text(disk, "bus-type"),
    });
    disks.collect()
}

fn list<T>(items: impl Iterator<Item = T>) -> GuestAgentList<T> {
    GuestAgentList {
        metadata: NoMetadata {},
        items: items.collect(),
    }
}

fn text(object: &Value, field: &str) -> String {
    object[field].as_str().map(cut).unwrap_or_default()
}

fn some(object: &Value, field: &str) -> Option<String> {
    Some(text(object, field)).filter(|text| !text.is_empty())
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The replies of Debian 13's agent (version 10.0.2), shortened.
    fn recorded() -> Replies {
        let mut replies = Replies::default();
        for (command, reply) in [
            (
                INFO,
                json!({"version": "10.0.2", "supported_commands": [
                    {"enabled": true, "name": "guest-ping", "success-response": true},
                    {"enabled": false, "name": "guest-exec", "success-response": true}]}),
            ),
            (
                OS,
                json!({"name": "Debian GNU/Linux", "kernel-release": "6.12.0-amd64", "version": "13 (trixie)",
                    "pretty-name": "Debian GNU/Linux 13 (trixie)", "version-id": "13", "machine": "x86_64",
                    "kernel-version": "#1 SMP", "id": "debian"}),
            ),
            (HOST_NAME, json!({"host-name": "vm"})),
            (TIMEZONE, json!({"zone": "CET", "offset": 3600})),
            (USERS, json!([{"login-time": 1_700_000_000.25, "user": "root"}])),
            (
                FILESYSTEMS,
                json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 5, "total-bytes": 10,
                    "disk": [{"serial": "s", "bus-type": "virtio", "bus": 0, "unit": 0, "target": 0,
                        "pci-controller": {"bus": 4, "slot": 0, "domain": 0, "function": 0}, "dev": "/dev/vda1"}]}]),
            ),
            (FREEZE_STATUS, json!("thawed")),
        ] {
            replies.add(command, &json!({"return": reply}).to_string());
        }
        replies
    }

    #[test]
    fn documents_are_those_of_kubevirt() {
        let replies = recorded();
        let user = json!({"userName": "root", "loginTime": 1_700_000_000.25});
        let filesystem = json!({"diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4", "usedBytes": 5,
            "totalBytes": 10, "disk": [{"serial": "s", "busType": "virtio"}]});
        assert_eq!(
            replies.document(GuestReport::GuestOsInfo),
            json!({
                "guestAgentVersion": "10.0.2",
                "supportedCommands": [{"name": "guest-ping", "enabled": true}, {"name": "guest-exec", "enabled": false}],
                "hostname": "vm",
                "os": {"name": "Debian GNU/Linux", "kernelRelease": "6.12.0-amd64", "version": "13 (trixie)",
                    "prettyName": "Debian GNU/Linux 13 (trixie)", "versionId": "13", "kernelVersion": "#1 SMP",
                    "machine": "x86_64", "id": "debian"},
                "timezone": "CET, 3600",
                "userList": [user],
                "fsInfo": {"disks": [filesystem]},
                "fsFreezeStatus": "thawed",
            })
        );
        assert_eq!(
            replies.document(GuestReport::UserList),
            json!({"metadata": {}, "items": [user]})
        );
        assert_eq!(
            replies.document(GuestReport::FilesystemList),
            json!({"metadata": {}, "items": [filesystem]})
        );
        let none = Replies::default();
        assert_eq!(
            none.document(GuestReport::UserList),
            json!({"metadata": {}, "items": []})
        );
        assert_eq!(
            none.document(GuestReport::GuestOsInfo),
            json!({"os": {}, "fsInfo": {"disks": []}})
        );
    }

    #[test]
    fn agent_is_supported_if_each_required_command_is_enabled() {
        let with = |commands: &[&str], enabled: bool| {
            let commands: Vec<_> = commands
                .iter()
                .map(|name| json!({"name": name, "enabled": enabled}))
                .collect();
            let mut replies = Replies::default();
            let reply = json!({"return": {"version": "1", "supported_commands": commands}});
            replies.add(INFO, &reply.to_string());
            replies.is_supported(&BTreeSet::from(["guest-ping"]))
        };
        assert_eq!(with(&REQUIRED, true), Some(true));
        assert_eq!(with(&REQUIRED, false), Some(false));
        assert_eq!(with(&REQUIRED[1..], true), Some(false));
        assert_eq!(with(&REQUIRED[..9], true), Some(false));
        assert_eq!(Replies::default().is_supported(&BTreeSet::new()), None);
    }

    #[test]
    fn freeze_status_is_unknown_without_a_reply() {
        for (reply, expected) in [
            (r#"{"return": "frozen"}"#, Some(true)),
            (r#"{"return": "thawed"}"#, Some(false)),
            (r#"{"return": 7}"#, None),
            (r#"{"error": {}}"#, None),
            ("garbage", None),
        ] {
            let mut replies = Replies::default();
            replies.add(FREEZE_STATUS, reply);
            assert_eq!(replies.is_frozen(), expected, "{reply}");
        }
    }

    #[test]
    fn reply_that_is_too_long_is_left_out() {
        let reply = |length: usize| format!("{{\"return\": \"thawed\"{}}}", " ".repeat(length));
        for (length, expected) in [(9, Some(false)), (LONGEST_REPLY, None)] {
            let mut replies = Replies::default();
            replies.add(FREEZE_STATUS, &reply(length));
            assert_eq!(replies.is_frozen(), expected, "{length}");
        }
    }

    #[test]
    fn texts_and_lists_of_a_guest_are_cut() {
        let users: Vec<_> = (0..LONGEST + 9)
            .map(|_| json!({"user": "x".repeat(LONGEST_TEXT + 9)}))
            .collect();
        let mut replies = Replies::default();
        replies.add(USERS, &json!({"return": users}).to_string());
        let list: Vec<_> = replies.users().collect();
        assert_eq!((list.len(), list[0].user_name.chars().count()), (LONGEST, LONGEST_TEXT));
        assert_eq!(replies.info().user_list.len(), IN_SUMMARY);
    }

    proptest! {
        #[test]
        fn any_reply_gives_documents(reply in "[{}\\[\\]\":,a-z0-9-]{0,40}", command in prop::sample::select(vec![INFO, OS, USERS, FILESYSTEMS])) {
            let mut replies = Replies::default();
            replies.add(command, &format!(r#"{{"return": {reply}}}"#));
            for report in GuestReport::ALL {
                replies.document(report);
            }
        }
    }
}
