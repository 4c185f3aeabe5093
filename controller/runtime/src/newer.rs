//! Which of two states of an object is the newer one.

use kube::ResourceExt;

/// The newer of what a watch has shown and what a write has answered. A watch is a moment behind
/// one's own writes; deciding on what it shows alone would do the same thing twice.
pub fn newer<K: ResourceExt>(watched: Option<K>, written: Option<K>) -> Option<K> {
    match (watched, written) {
        // What a watch does not show any more has gone, if it ever showed what was written.
        (None, _) => None,
        (Some(watched), Some(written)) if !has_shown(&watched, &written) => Some(written),
        (watched, _) => watched,
    }
}

/// Whether a watch that shows this has shown what was written, too: that is as old, or older, or of an object that is
/// there no more.
pub fn has_shown<K: ResourceExt>(watched: &K, written: &K) -> bool {
    let version = |object: &K| {
        object
            .resource_version()
            .and_then(|version| version.parse::<u64>().ok())
            .unwrap_or(0)
    };
    version(written) <= version(watched) || written.uid() != watched.uid()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::newer;

    fn at(version: &str, uid: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some(version.into());
        object.metadata.uid = Some(uid.into());
        object
    }

    #[test]
    fn the_newer_of_watch_and_write_counts_and_a_deletion_always() {
        let version = |object: Option<ConfigMap>| object.and_then(|object| object.metadata.resource_version);
        assert_eq!(version(newer(Some(at("9", "u")), Some(at("10", "u")))).unwrap(), "10");
        assert_eq!(version(newer(Some(at("11", "u")), Some(at("10", "u")))).unwrap(), "11");
        assert_eq!(
            version(newer(Some(at("9", "new")), Some(at("10", "old")))).unwrap(),
            "9"
        );
        assert_eq!(version(newer(Some(at("9", "u")), None)).unwrap(), "9");
        assert_eq!(version(newer(None, Some(at("10", "u")))), None);
    }
}
