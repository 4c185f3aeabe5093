//! How a cache stores an object.

use std::sync::Arc;

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};

/// Maximum size of the dictionary, in bytes. LZ4 refers back at most 64 KiB, and it rebuilds its hash table of the
/// dictionary for each object.
const MOST_LIKE: usize = 16 << 10;

/// An object, decoded or serialized: its structs take several times the memory of its text.
#[derive(Debug)]
pub(crate) enum StoredObject<K> {
    /// Decoded.
    Whole(Arc<K>),
    /// Serialized and compressed.
    Packed(Packed<K>),
}

/// An object as JSON, compressed by LZ4 with a dictionary: objects of one kind are similar.
#[derive(Debug)]
pub(crate) struct Packed<K> {
    text: Arc<[u8]>,
    /// The dictionary it was compressed with.
    like: Arc<[u8]>,
    read: fn(&[u8]) -> Option<K>,
}

/// How the objects of a cache are stored.
#[derive(Debug)]
pub(crate) enum StorageFormat<K> {
    /// Decoded.
    Whole,
    /// Serialized and compressed.
    Packed {
        /// Serializes to JSON.
        write: fn(&K) -> Option<Vec<u8>>,
        /// Deserializes from JSON.
        read: fn(&[u8]) -> Option<K>,
        /// The dictionary: JSON of the first objects, and of later ones that compressed badly.
        like: Mutex<Arc<[u8]>>,
    },
}

impl<K> Clone for StoredObject<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(object) => Self::Whole(Arc::clone(object)),
            Self::Packed(packed) => Self::Packed(Packed {
                text: Arc::clone(&packed.text),
                like: Arc::clone(&packed.like),
                read: packed.read,
            }),
        }
    }
}

impl<K> StorageFormat<K> {
    /// Creates a packing that serializes and compresses.
    pub(crate) fn packed() -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        Self::Packed {
            write: |object| serde_json::to_vec(object).ok(),
            read: |text| serde_json::from_slice(text).ok(),
            like: Mutex::default(),
        }
    }

    /// Converts an object to its stored form.
    pub(crate) fn keep(&self, object: Arc<K>) -> StoredObject<K> {
        let Self::Packed { write, read, like } = self else {
            return StoredObject::Whole(object);
        };
        let Some(json) = write(&object) else {
            return StoredObject::Whole(object);
        };
        let mut known = like.lock();
        let like = Arc::clone(&known);
        let text = compress_prepend_size_with_dict(&json, &like);
        let is_unlike = like.is_empty() || text.len() * 4 > json.len();
        if is_unlike && like.len() < MOST_LIKE {
            let more = json.len().min(MOST_LIKE - like.len());
            *known = [&*like, &json[..more]].concat().into();
        }
        StoredObject::Packed(Packed {
            text: text.into(),
            like,
            read: *read,
        })
    }
}

impl<K> StoredObject<K> {
    /// Returns the object, or `None` if its own serialization cannot be decoded. No kind is known for which that
    /// happens.
    pub(crate) fn open(&self) -> Option<Arc<K>> {
        match self {
            Self::Whole(object) => Some(Arc::clone(object)),
            Self::Packed(Packed { text, like, read }) => {
                let json = decompress_size_prepended_with_dict(text, like).ok();
                let object = json.and_then(|json| read(&json));
                debug_assert!(object.is_some(), "an object cannot be read as it was written");
                object.map(Arc::new)
            }
        }
    }

    /// Returns whether both are the same allocation.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => Arc::ptr_eq(one, other),
            (Self::Packed(one), Self::Packed(other)) => Arc::ptr_eq(&one.text, &other.text),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::prelude::*;

    use super::*;

    fn object(name: &str, data: &[(&str, &str)]) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        object.data = Some(data.collect());
        object
    }

    fn size(kept: &StoredObject<ConfigMap>) -> usize {
        match kept {
            StoredObject::Whole(_) => panic!("it is not packed"),
            StoredObject::Packed(packed) => packed.text.len(),
        }
    }

    fn like(packing: &StorageFormat<ConfigMap>) -> usize {
        match packing {
            StorageFormat::Whole => 0,
            StorageFormat::Packed { like, .. } => like.lock().len(),
        }
    }

    #[test]
    fn object_similar_to_others_takes_little_memory() {
        let packing = StorageFormat::packed();
        let data: Vec<String> = (0..100)
            .map(|number| format!("the value of number {}", number * 7919))
            .collect();
        let with = |last: &'static str| {
            let data = data.iter().map(|text| (text.as_str(), "some value"));
            object(last, &data.collect::<Vec<_>>())
        };
        let first = packing.keep(Arc::new(with("first")));
        let second = packing.keep(Arc::new(with("second")));
        assert!(
            size(&second) * 10 < size(&first),
            "{} and {}",
            size(&first),
            size(&second)
        );
        for (kept, name) in [(&first, "first"), (&second, "second")] {
            assert_eq!(*kept.open().unwrap(), with(name));
        }
        let known = like(&packing);
        assert!(known > 0);
        packing.keep(Arc::new(with("third")));
        assert_eq!(like(&packing), known, "there is nothing new in it");
    }

    #[test]
    fn whole_storage_format_keeps_an_object_unchanged() {
        let object = Arc::new(object("a", &[]));
        let kept = StorageFormat::Whole.keep(Arc::clone(&object));
        assert!(Arc::ptr_eq(&kept.open().unwrap(), &object));
    }

    proptest! {
        #[test]
        fn packed_object_is_unpacked_unchanged(
            objects in prop::collection::vec(("[a-z]{1,8}", prop::collection::vec(("[a-z]{1,9}", ".{0,400}"), 0..12)), 1..24)
        ) {
            let packing = StorageFormat::packed();
            let objects: Vec<ConfigMap> = objects
                .iter()
                .map(|(name, data)| {
                    let data: Vec<_> = data.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                    object(name, &data)
                })
                .collect();
            let kept: Vec<_> = objects.iter().map(|object| packing.keep(Arc::new(object.clone()))).collect();
            for (kept, object) in kept.iter().zip(&objects) {
                prop_assert_eq!(&*kept.open().unwrap(), object);
            }
            prop_assert!(like(&packing) <= MOST_LIKE);
        }
    }
}
