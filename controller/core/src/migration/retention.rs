//! Which ended migrations of a VMI are deleted, and when.

use std::sync::Arc;

use drydock_api::kubevirt::VirtualMachineInstanceMigration;

use super::record::MigrationRecord;

/// Number of ended migrations that are kept per VMI. The same as in KubeVirt.
const KEPT: usize = 5;

/// Returns how many of a VMI's ended migrations are deleted now, and how many once no migration changes any more
/// (`is_quiet`): a deletion takes two requests, which would compete with those that move guests. If there are twice as
/// many ended migrations as are kept, the surplus is deleted now in any case.
pub fn surplus(ended: usize, is_quiet: bool) -> (usize, usize) {
    let surplus = ended.saturating_sub(KEPT);
    if is_quiet || surplus >= KEPT {
        (surplus, 0)
    } else {
        (0, surplus)
    }
}

/// Returns the ended migrations among all of a VMI's migrations, the oldest first. `ended` has ended, although the
/// caches may not show that yet.
pub fn oldest_first(
    mut all: Vec<Arc<VirtualMachineInstanceMigration>>,
    ended: &VirtualMachineInstanceMigration,
) -> Vec<Arc<VirtualMachineInstanceMigration>> {
    all.retain(|other| other.metadata.uid == ended.metadata.uid || MigrationRecord::of(other).is_over());
    all.sort_by_key(|other| (other.metadata.creation_timestamp.clone(), other.metadata.uid.clone()));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn trimming_keeps_five_and_until_quiet_up_to_nine_migrations() {
        for (ended, quiet, expected) in [
            (0, true, (0, 0)),
            (5, true, (0, 0)),
            (6, true, (1, 0)),
            (14, true, (9, 0)),
            (5, false, (0, 0)),
            (6, false, (0, 1)),
            (9, false, (0, 4)),
            (10, false, (5, 0)),
        ] {
            assert_eq!(surplus(ended, quiet), expected, "{ended} {quiet}");
        }
    }

    #[test]
    fn ended_migrations_are_ordered_by_age_then_uid() {
        let migration = |uid: &str, second: u8, phase: &str| -> Arc<VirtualMachineInstanceMigration> {
            let created = format!("2026-01-01T00:00:0{second}Z");
            serde_json::from_value(json!({
                "metadata": {"name": uid, "uid": uid, "creationTimestamp": created},
                "spec": {"vmiName": "vm"}, "status": {"phase": phase},
            }))
            .map(Arc::new)
            .unwrap()
        };
        let own = migration("own", 3, "Running");
        let all = vec![
            migration("moves", 0, "Running"),
            migration("late", 9, "Failed"),
            Arc::clone(&own),
            migration("b", 1, "Succeeded"),
            migration("a", 1, "Failed"),
        ];
        let found = oldest_first(all, &own);
        let uids: Vec<&str> = found.iter().filter_map(|one| one.metadata.uid.as_deref()).collect();
        assert_eq!(uids, ["a", "b", "own", "late"]);
    }
}
