//! Lets the guest agent set the access credentials of the manifest. [`drydock_core::access_credentials`] returns the
//! commands.
//!
//! ```text
//!  agent connected, Secret changed ─▶ read ─▶ commands ─▶ all succeeded ─▶ AccessCredentialsSynchronized
//!                     ▲                                  └ one failed ─▶ tried again, less and less often
//!                     └──────────────────────────────────────────────────┘
//! ```

use std::{path::Path, time::Duration};

use drydock_api::kubevirt::VirtualMachineInstanceSpec;
use drydock_core::{
    access_credentials::{self, Secrets},
    launcher_pod::credential_volumes,
};
use drydock_host::{
    domain::{CallError, DomainHandle},
    pod_folder::{FolderError, PodSecret, WatchedPath},
};
use drydock_runtime::{Backoff, Severity, chain, clock};
use futures::future::select_all;
use kube::ResourceExt;
use tracing::{info, warn};

use super::{ConnectedGuest, GuestTask, publish_event};

/// Minimum and maximum delay before a failed attempt to set credentials is repeated. For example, the guest's user may
/// not exist yet.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// KubeVirt's message for a guest agent that is not connected.
const OFFLINE: &str = "Guest agent is offline";

/// Credentials that the guest agent sets.
#[derive(Default)]
pub(super) struct Credentials {
    secrets: Vec<(String, PodSecret)>,
    /// Content of the Secrets that the guest has, if all commands have succeeded.
    set: Option<Secrets>,
    /// Content of the Secrets for which commands have failed, and the time of the next attempt.
    failed: Option<(Secrets, clock::Instant)>,
    backoff: Option<Backoff>,
    /// Result of the last attempt.
    result: Option<Result<(), String>>,
}

impl Credentials {
    /// Returns the credentials of a guest in this pod. None of them is set yet.
    ///
    /// # Errors
    /// If the UID is not a valid Kubernetes UID.
    pub(super) fn of(kubelet: &Path, pod_uid: &str, spec: &VirtualMachineInstanceSpec) -> Result<Self, FolderError> {
        let volumes = credential_volumes(spec).into_iter();
        let secrets = volumes.map(|(secret, volume)| Ok((secret, PodSecret::new(kubelet, pod_uid, &volume)?)));
        let secrets = secrets.collect::<Result<Vec<_>, FolderError>>()?;
        let result = (!secrets.is_empty()).then(|| Err(OFFLINE.to_owned()));
        Ok(Self {
            secrets,
            result,
            ..Self::default()
        })
    }

    /// Watches the folders of the Secrets.
    ///
    /// # Errors
    /// If the kubelet's folder cannot be watched.
    pub(super) fn watch(&self) -> Result<Vec<WatchedPath>, FolderError> {
        self.secrets.iter().map(|(_, secret)| secret.watch()).collect()
    }

    /// Returns whether the credentials are set, or the reason why not; `None` if there are no credentials.
    pub(super) fn result(&self) -> Option<Result<(), String>> {
        self.result.clone()
    }

    /// Returns the time at which a failed attempt is repeated.
    pub(super) fn retry(&self) -> Option<clock::Instant> {
        self.failed.as_ref().map(|(_, at)| *at)
    }

    /// Discards the known state because the guest or its agent has changed, so that the credentials are set again.
    pub(super) fn forget(&mut self) {
        self.set = None;
        self.failed = None;
        self.backoff = None;
    }

    /// Cancels the scheduled retry while the guest does not run. The next attempt is made when it runs again.
    pub(super) fn cancel_retry(&mut self) {
        self.failed = None;
    }

    fn read(&self) -> Result<Secrets, FolderError> {
        let files = self
            .secrets
            .iter()
            .map(|(name, secret)| Ok((name.clone(), secret.read()?)));
        files.collect()
    }

    /// Sets the credentials unless the guest is known to have them.
    ///
    /// Returns the result if it must be published: the credentials were set, or the reason for the failure has changed.
    async fn synchronize(
        &mut self,
        handle: &DomainHandle,
        spec: &VirtualMachineInstanceSpec,
        connected: bool,
    ) -> Option<Result<(), String>> {
        if self.secrets.is_empty() {
            return None;
        }
        if !connected {
            self.forget();
            self.result = Some(Err(OFFLINE.to_owned()));
            return None;
        }
        let (secrets, result) = match self.read() {
            Ok(secrets) if self.set.as_ref() == Some(&secrets) || self.waits(&secrets) => return None,
            Ok(secrets) => {
                let result = set_all(handle, spec, &secrets).await;
                (secrets, result)
            }
            Err(error) => (Secrets::new(), Err(chain(&error).to_string())),
        };
        let before = self.result.replace(result.clone());
        self.set = None;
        if result.is_ok() {
            self.forget();
            self.set = Some(secrets);
        } else {
            let backoff = self.backoff.get_or_insert_with(|| Backoff::new(RETRY.0, RETRY.1));
            self.failed = Some((secrets, clock::Instant::now() + backoff.delay()));
        }
        (result.is_ok() || before.as_ref() != Some(&result)).then_some(result)
    }

    /// Returns whether the same content has failed before and its next attempt is not due yet.
    fn waits(&self, secrets: &Secrets) -> bool {
        let failed = self.failed.as_ref();
        failed.is_some_and(|(content, at)| content == secrets && clock::Instant::now() < *at)
    }
}

impl GuestTask {
    /// Sets the credentials unless the guest is known to have them, and publishes the result.
    pub(super) async fn synchronize_credentials(&self, handle: &DomainHandle, known: &mut ConnectedGuest) {
        // The clone of the whole VMI is only needed if there are credentials.
        if known.credentials.secrets.is_empty() {
            return;
        }
        let instance = self.instance();
        let connected = known.agent.is_some();
        let Some(result) = known.credentials.synchronize(handle, &instance.spec, connected).await else {
            return;
        };
        let vmi = format!("{}/{}", instance.namespace().unwrap_or_default(), instance.name_any());
        let (severity, reason, note) = match result {
            Ok(()) => {
                info!(vmi, "access credentials set");
                let note = "Access credentials sync successful.".to_owned();
                (Severity::Normal, "AccessCredentialsSyncSuccess", note)
            }
            Err(why) => {
                warn!(vmi, error = why, "could not set the access credentials");
                let note = format!("Access credentials sync failed: {why}");
                (Severity::Warning, "AccessCredentialsSyncFailed", note)
            }
        };
        publish_event(&self.shared.events, &instance, severity, reason, note);
    }
}

/// Sends all commands and returns the first error.
///
/// After a refused command, the following commands are still sent. After any other error, no more commands are sent.
async fn set_all(handle: &DomainHandle, spec: &VirtualMachineInstanceSpec, secrets: &Secrets) -> Result<(), String> {
    let mut first = None;
    for command in access_credentials::commands(spec, secrets)? {
        if let Err(error) = handle.agent_command(&command.message).await {
            first.get_or_insert(format!("{} failed: {}", command.purpose, chain(&error)));
            if !matches!(error, CallError::Refused(_)) {
                break;
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Waits until a Secret may have changed, or forever if there is no Secret.
pub(super) async fn changed(watched: &[WatchedPath]) {
    if watched.is_empty() {
        return std::future::pending().await;
    }
    let waits = watched.iter().map(|watched| Box::pin(watched.changed()));
    select_all(waits).await;
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use drydock_host::{domain::InitialState, fake::fake_guest::FakeLibvirt, libvirt::LibvirtError};
    use serde_json::{Value, json};

    use super::*;

    /// A kubelet's folder with the Secret of a pod. It is removed at the end of the test.
    struct Kubelet {
        root: PathBuf,
        versions: u32,
    }

    impl Kubelet {
        fn new() -> Self {
            let root = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-secrets-XXXXXX")).unwrap();
            Self { root, versions: 0 }
        }

        /// Mounts a version of the Secret with the root's password, as the kubelet does.
        fn publish(&mut self, password: &str) {
            self.versions += 1;
            let folder = self.root.join("pods/0a/volumes/kubernetes.io~secret/credentials-0");
            let version = format!("..{}", self.versions);
            fs::create_dir_all(folder.join(&version)).unwrap();
            fs::write(folder.join(&version).join("root"), password).unwrap();
            symlink(&version, folder.join("..data_tmp")).unwrap();
            fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        }
    }

    impl Drop for Kubelet {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.root).unwrap();
        }
    }

    fn spec() -> VirtualMachineInstanceSpec {
        serde_json::from_value(
            json!({"domain": {"devices": {}}, "accessCredentials": [{"userPassword": {
                "source": {"secret": {"secretName": "passwords"}},
                "propagationMethod": {"qemuGuestAgent": {}},
            }}]}),
        )
        .unwrap()
    }

    async fn running(libvirt: &FakeLibvirt) -> DomainHandle {
        let (handle, _events) = libvirt.connect("ns_vm").await.unwrap();
        handle.define("<domain/>").await.unwrap();
        handle.create(InitialState::Running).await.unwrap();
        libvirt.connect_agent();
        handle
    }

    /// Makes the next attempt due at once, because libvirt's thread uses the real clock.
    fn make_due(credentials: &mut Credentials) {
        credentials.failed.as_mut().unwrap().1 = clock::Instant::now();
    }

    /// Returns the passwords that were sent to the agent, in base64.
    fn sent(libvirt: &FakeLibvirt) -> Vec<String> {
        let commands = libvirt.agent_commands().into_iter();
        commands
            .map(|command| {
                let command: Value = serde_json::from_str(&command).unwrap();
                command["arguments"]["password"].as_str().unwrap().to_owned()
            })
            .collect()
    }

    #[tokio::test]
    async fn credentials_are_set_once_and_after_each_change() {
        let (libvirt, mut kubelet) = (FakeLibvirt::default(), Kubelet::new());
        let handle = running(&libvirt).await;
        let mut credentials = Credentials::of(&kubelet.root, "0a", &spec()).unwrap();
        assert_eq!(credentials.result(), Some(Err(OFFLINE.to_owned())));
        kubelet.publish("one");
        assert_eq!(credentials.synchronize(&handle, &spec(), false).await, None);
        assert_eq!(sent(&libvirt), [""; 0]);
        for expected in [Some(Ok(())), None] {
            assert_eq!(credentials.synchronize(&handle, &spec(), true).await, expected);
        }
        assert_eq!(sent(&libvirt), ["b25l"]);
        kubelet.publish("two");
        assert_eq!(credentials.synchronize(&handle, &spec(), true).await, Some(Ok(())));
        // The guest agent has changed, so the guest may not have the credentials yet.
        credentials.forget();
        assert_eq!(credentials.synchronize(&handle, &spec(), true).await, Some(Ok(())));
        assert_eq!(sent(&libvirt), ["b25l", "dHdv", "dHdv"]);
        assert_eq!(credentials.result(), Some(Ok(())));
    }

    #[tokio::test]
    async fn refused_credentials_are_set_later_and_reported_once() {
        let (libvirt, mut kubelet) = (FakeLibvirt::default(), Kubelet::new());
        let handle = running(&libvirt).await;
        let mut credentials = Credentials::of(&kubelet.root, "0a", &spec()).unwrap();
        // The Secret is not mounted.
        let missing = credentials.synchronize(&handle, &spec(), true).await.unwrap();
        assert!(missing.unwrap_err().contains("there is no"), "a missing Secret");
        kubelet.publish("one");
        // libvirt's VIR_ERR_INTERNAL_ERROR, which it reports for an error of the agent.
        let refusal = || LibvirtError {
            call: "agent command",
            code: 1,
            domain: 10,
            message: "no such user".into(),
        };
        libvirt.refuse_next(refusal());
        let refused = credentials
            .synchronize(&handle, &spec(), true)
            .await
            .unwrap()
            .unwrap_err();
        assert!(refused.starts_with("setting the password of root failed"), "{refused}");
        // The next attempt is not due yet.
        assert_eq!(credentials.synchronize(&handle, &spec(), true).await, None);
        make_due(&mut credentials);
        libvirt.refuse_next(refusal());
        assert_eq!(
            credentials.synchronize(&handle, &spec(), true).await,
            None,
            "the same reason again"
        );
        assert!(credentials.retry().unwrap() > clock::Instant::now());
        make_due(&mut credentials);
        assert_eq!(credentials.synchronize(&handle, &spec(), true).await, Some(Ok(())));
        assert_eq!((sent(&libvirt).len(), credentials.retry()), (1, None));
    }

    #[tokio::test]
    async fn guest_without_such_credentials_needs_nothing() {
        let (libvirt, kubelet) = (FakeLibvirt::default(), Kubelet::new());
        let handle = running(&libvirt).await;
        let spec = VirtualMachineInstanceSpec::default();
        let mut credentials = Credentials::of(&kubelet.root, "0a", &spec).unwrap();
        assert_eq!(credentials.synchronize(&handle, &spec, true).await, None);
        assert_eq!((credentials.result(), credentials.retry()), (None, None));
    }
}
