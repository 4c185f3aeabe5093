//! Live migrations in tests: requests, waiting, and the output of a guest across all its pods.
//!
//! ```text
//!  pod on the first node:   tick 1 .. tick 41 boo       the console output of a migrated guest is in
//!  pod on the second node:                       t=.. tick 42 ..   the logs of all its pods
//! ```

use anyhow::{Context, Result, bail};
use drydock_api::{
    annotations::MASK_CPU_FEATURES,
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec,
        migration::MigrationPhase, names,
    },
    labels::CPU_FEATURE,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, LogParams, ObjectMeta, PostParams},
};
use serde_json::Value;

use crate::{
    Cluster,
    guests::{NAMESPACE, ticks, without_a_gap},
    migration_summary::summary,
    watching::{until, until_ok, until_some},
};

/// Returns the CPU features of a guest beyond its model.
///
/// # Errors
/// If its CPU is not known.
pub fn required_features(instance: &VirtualMachineInstance) -> Result<Vec<String>> {
    let record = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    let cpu = record.and_then(|record| record.guest_cpu.as_ref());
    Ok(cpu.context("the status lacks the CPU of the guest")?.required.clone())
}

impl Cluster {
    /// Returns a CPU feature that a guest has beyond its model and for which a node has a label.
    ///
    /// # Errors
    /// If there is none, or the CPU of the guest is not known.
    pub async fn labelled_feature(&self, instance: &VirtualMachineInstance, node: &str) -> Result<String> {
        let labels = self.cpu_labels(node).await?;
        let is_labelled = |feature: &String| labels.contains_key(&format!("{CPU_FEATURE}{feature}"));
        let found = required_features(instance)?.into_iter().find(is_labelled);
        found.context("the node has no label of a CPU feature of the guest")
    }

    /// Sets the masked CPU features of a node, possibly none, and waits until its agent reports that the node has them
    /// and no longer offers them.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn mask(&self, node: &str, features: &[&str]) -> Result<()> {
        let text = features.join(",");
        let mask = (!features.is_empty()).then_some(text.as_str());
        self.annotate(node, &[(MASK_CPU_FEATURES, mask)]).await?;
        until_some("the mask to be in force", || async {
            let status = self.hypervisor(node).await?.status.unwrap_or_default();
            let withheld = status
                .facts
                .as_ref()
                .and_then(|facts| Some(facts.virtualization.as_ref()?.withheld.clone()));
            Ok((status.masked_features == features && withheld.unwrap_or_default() == features).then_some(()))
        })
        .await
    }

    /// Returns the API of VirtualMachineInstanceMigrations.
    pub fn migrations(&self) -> Api<VirtualMachineInstanceMigration> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Creates a migration of an instance, and returns the migration's name.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub async fn migrate(&self, instance: &str) -> Result<String> {
        self.migrate_to(instance, &[]).await
    }

    /// Creates a migration to a node with these labels, and returns the migration's name.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub async fn migrate_to(&self, instance: &str, labels: &[(&str, &str)]) -> Result<String> {
        let selector = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let migration = VirtualMachineInstanceMigration {
            metadata: ObjectMeta {
                generate_name: Some(format!("{instance}-")),
                ..ObjectMeta::default()
            },
            spec: VirtualMachineInstanceMigrationSpec {
                vmi_name: instance.to_owned(),
                added_node_selector: selector.collect(),
                priority: None,
            },
            status: None,
        };
        let made = self.migrations().create(&PostParams::default(), &migration).await?;
        Ok(made.name_any())
    }

    /// Waits until a migration is in a phase. Fails immediately if it has ended in another phase.
    ///
    /// # Errors
    /// If it does not reach the phase in time, or has ended.
    pub async fn until_migration(&self, name: &str, wanted: MigrationPhase) -> Result<VirtualMachineInstanceMigration> {
        let what = format!("the migration to be {}", wanted.as_str());
        let there = |migration: &VirtualMachineInstanceMigration| {
            migration
                .phase()
                .is_some_and(|phase| phase == wanted || phase.is_final())
        };
        let migration = until(self.migrations(), name, &what, there).await?;
        if migration.phase() != Some(wanted) {
            bail!("{name} has ended while waiting for {what}: {}", summary(&migration));
        }
        Ok(migration)
    }

    /// Waits until a migration has reached a phase. The migration may already be in a later phase.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_migration_has_been(&self, name: &str, wanted: MigrationPhase) -> Result<()> {
        let what = format!("the migration to have reached {}", wanted.as_str());
        until(
            self.migrations(),
            name,
            &what,
            |migration: &VirtualMachineInstanceMigration| migration.phase().is_some_and(|phase| phase >= wanted),
        )
        .await
        .map(drop)
    }

    /// Waits until the condition `Waiting` of a migration has a reason, and returns its message.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_migration_waits(&self, name: &str, reason: &str) -> Result<String> {
        let migration = until(
            self.migrations(),
            name,
            &format!("Waiting for {reason}"),
            |migration: &VirtualMachineInstanceMigration| waiting(migration).is_some_and(|(found, _)| found == reason),
        )
        .await?;
        Ok(waiting(&migration).map(|(_, message)| message).unwrap_or_default())
    }

    /// Waits until a migration has succeeded and its instance reports it.
    ///
    /// # Errors
    /// If it fails or takes too long.
    pub async fn until_migrated(
        &self,
        name: &str,
    ) -> Result<(VirtualMachineInstanceMigration, VirtualMachineInstance)> {
        let migration = self.until_migration(name, MigrationPhase::Succeeded).await?;
        let uid = migration.uid();
        let instance = until(
            self.instances(),
            &migration.spec.vmi_name,
            &format!("the instance to report the end of {name}"),
            |instance: &VirtualMachineInstance| {
                let state = instance
                    .status
                    .as_ref()
                    .and_then(|status| status.migration_state.as_ref());
                state.is_some_and(|state| state.completed && state.migration_uid == uid)
            },
        )
        .await?;
        Ok((migration, instance))
    }

    /// Deletes a migration, which aborts it, and waits until it is deleted.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn abort(&self, name: &str) -> Result<()> {
        self.migrations().delete(name, &DeleteParams::default()).await?;
        until_some(&format!("the deletion of {name}"), || async {
            Ok(self.migrations().get_opt(name).await?.is_none().then_some(()))
        })
        .await
    }

    /// Configures migrations: lines of `migrations` in the legacy ConfigMap.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub async fn limit_migrations(&self, lines: &str) -> Result<()> {
        self.configure(&[("migrations", lines)]).await
    }

    /// Waits until only one pod of an instance has not ended, and returns it.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_one_pod(&self, name: &str) -> Result<Pod> {
        until_some(&format!("{name} to have one pod"), || async {
            let instance = self.instances().get(name).await?;
            let mut pods = self.launchers_of(&instance).await?;
            pods.retain(|pod| !pod_has_ended(pod));
            Ok((pods.len() == 1).then(|| pods.pop()).flatten())
        })
        .await
    }

    /// Returns the console output of an instance's guest from all of its pods.
    ///
    /// If the guest moved within a line, each of the two pods has a part of the line.
    ///
    /// # Errors
    /// If a log cannot be read.
    pub async fn consoles(&self, name: &str) -> Result<String> {
        let instance = self.instances().get(name).await?;
        let mut output = String::new();
        for pod in self.launchers_of(&instance).await? {
            // A pod that has not started has no log.
            let log = self
                .pods()
                .logs(&pod.name_any(), &LogParams::default())
                .await
                .unwrap_or_default();
            for line in log.lines().filter_map(|line| line.strip_prefix("guest: ")) {
                output.push_str(line);
                output.push('\n');
            }
        }
        Ok(whole_ticks(&output))
    }

    /// Waits until `found` returns a value for the console output of an instance's guest from all of its pods.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_output<T>(&self, name: &str, what: &str, found: impl Fn(&str) -> Option<T>) -> Result<T> {
        until_some(&format!("{name} to print {what}"), || async {
            Ok(found(&self.consoles(name).await?))
        })
        .await
    }

    /// Checks that a counting guest has run without interruption, only once, and continues.
    ///
    /// # Errors
    /// If a number is missing or duplicated, or the output ends.
    pub async fn goes_on(&self, name: &str) -> Result<()> {
        let count = |text: &str| ticks(text).last().map(|tick| tick.number);
        let before = count(&self.consoles(name).await?).with_context(|| format!("{name} has printed nothing"))?;
        let all = self
            .until_output(name, "more", |text| {
                count(text).is_some_and(|last| last > before + 5).then(|| ticks(text))
            })
            .await?;
        without_a_gap(&all).with_context(|| name.to_owned())
    }

    /// Waits until an object has events with all of these reasons, and returns all of its events.
    ///
    /// # Errors
    /// If that does not happen in time; the message contains the existing reasons.
    pub async fn until_events(&self, kind: &str, name: &str, reasons: &[&str]) -> Result<Vec<Value>> {
        let what = format!("events of {kind} {name} with the reasons {reasons:?}");
        until_ok(&what, || async {
            let mut events = self.events(name).await?;
            events.retain(|event| event["regarding"]["kind"] == kind);
            let seen: Vec<&Value> = events.iter().map(|event| &event["reason"]).collect();
            let all = reasons.iter().all(|reason| seen.iter().any(|seen| *seen == reason));
            let missing = format!("{seen:?}");
            Ok(if all { Ok(events) } else { Err(missing) })
        })
        .await
    }
}

/// Returns the reason and the message for which a migration waits.
pub fn waiting(migration: &VirtualMachineInstanceMigration) -> Option<(String, String)> {
    let conditions = &migration.status.as_ref()?.conditions;
    let waiting = conditions.iter().find(|condition| condition.type_ == "Waiting")?;
    Some((
        waiting.reason.clone().unwrap_or_default(),
        waiting.message.clone().unwrap_or_default(),
    ))
}

/// Returns whether a pod has ended.
pub fn pod_has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the migrations of an instance, the oldest first.
///
/// # Errors
/// If they cannot be listed.
pub async fn migrations_of(cluster: &Cluster, instance: &str) -> Result<Vec<VirtualMachineInstanceMigration>> {
    let mut all = cluster.migrations().list(&ListParams::default()).await?.items;
    all.retain(|migration| migration.spec.vmi_name == instance);
    all.sort_by_key(|migration| {
        (
            migration.metadata.creation_timestamp.clone().map(|time| time.0),
            migration.name_any(),
        )
    });
    Ok(all)
}

/// Returns the node in the status of an instance.
///
/// # Errors
/// If the status contains no node.
pub fn node_of(instance: &VirtualMachineInstance) -> Result<String> {
    let status = instance.status.as_ref();
    let node = status.and_then(|status| status.node_name.clone());
    node.with_context(|| format!("{} has no node", instance.name_any()))
}

/// The label with the node of an instance.
pub const NODE_LABEL: &str = names::NODE_NAME;

/// Returns the text with each tick on one line, including ticks that start in one pod's log and end in another's.
fn whole_ticks(text: &str) -> String {
    let is_part = |line: &str| {
        let tick = line.contains("tick ") || "tick ".starts_with(line);
        tick && !line.trim_end().ends_with("ms")
    };
    let mut whole = String::new();
    for line in text.lines() {
        whole.push_str(line);
        if !is_part(whole.rsplit('\n').next().unwrap_or_default()) {
            whole.push('\n');
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guests::ticks;

    #[test]
    fn tick_split_between_two_pods_is_joined() {
        let all = "tick 1 boot=ab wall=1.0 up=1.0 late=0ms\nhello\ntick 2 boot=ab wall=1.2 up=1.2 late=10ms\n";
        for cut in 0..=all.len() {
            let logs = format!("{}\n{}", &all[..cut], &all[cut..]);
            let found: Vec<u64> = ticks(&whole_ticks(&logs)).iter().map(|tick| tick.number).collect();
            assert_eq!(found, [1, 2], "{logs:?}");
            assert!(whole_ticks(all).contains("\nhello\n"));
        }
    }
}
