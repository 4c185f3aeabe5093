//! Compares states of an object by their resourceVersions.

use kube::ResourceExt;

/// Returns the newer of `watched`, the state from a watch, and `written`, the response to a write. A watch lags behind
/// the process's own writes; a decision based on the watch alone would repeat an action.
pub fn latest_state<K: ResourceExt>(watched: Option<K>, written: Option<K>) -> Option<K> {
    match (watched, written) {
        // The watch has removed the object, provided that it ever showed the written state.
        (None, _) => None,
        (Some(watched), Some(written)) if !has_shown(&watched, &written) => Some(written),
        (watched, _) => watched,
    }
}

/// Returns whether the watch that shows `watched` has caught up with `written`.
///
/// This is the case if `written` is not newer than `watched`, or belongs to a deleted object (with another UID).
pub fn has_shown<K: ResourceExt>(watched: &K, written: &K) -> bool {
    version(written) <= version(watched) || written.uid() != watched.uid()
}

/// Returns the resourceVersion of an object as a number, by which the states of one kind are ordered; 0 if there is
/// none.
pub(crate) fn version<K: ResourceExt>(object: &K) -> u64 {
    let version = object.resource_version();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::latest_state;

    fn at(version: &str, uid: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some(version.into());
        object.metadata.uid = Some(uid.into());
        object
    }

    #[test]
    fn the_newer_of_watch_and_write_counts_and_a_deletion_always() {
        let version = |object: Option<ConfigMap>| object.and_then(|object| object.metadata.resource_version);
        assert_eq!(
            version(latest_state(Some(at("9", "u")), Some(at("10", "u")))).unwrap(),
            "10"
        );
        assert_eq!(
            version(latest_state(Some(at("11", "u")), Some(at("10", "u")))).unwrap(),
            "11"
        );
        assert_eq!(
            version(latest_state(Some(at("9", "new")), Some(at("10", "old")))).unwrap(),
            "9"
        );
        assert_eq!(version(latest_state(Some(at("9", "u")), None)).unwrap(), "9");
        assert_eq!(version(latest_state(None, Some(at("10", "u")))), None);
    }
}
