//! The storage of objects in a cache.

use std::sync::Arc;

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};

/// Maximum size of the dictionary, in bytes. LZ4 refers back at most 64 KiB, and it rebuilds its hash table of the
/// dictionary for each object.
const DICTIONARY_BYTES: usize = 16 << 10;

/// An object in a cache, decoded or serialized: a decoded object takes several times the memory of its text.
#[derive(Debug)]
pub(crate) enum StoredObject<K> {
    /// Decoded.
    Whole(Arc<K>),
    /// Serialized and compressed.
    Compressed(CompressedObject<K>),
}

/// An object as JSON, compressed by LZ4 with a dictionary: objects of one kind are similar.
#[derive(Debug)]
pub(crate) struct CompressedObject<K> {
    text: Arc<[u8]>,
    /// The dictionary with which the object was compressed.
    dictionary: Arc<[u8]>,
    read: fn(&[u8]) -> Option<K>,
}

/// The format in which a cache stores its objects.
#[derive(Debug)]
pub(crate) enum StorageFormat<K> {
    /// Decoded.
    Whole,
    /// Serialized and compressed.
    Compressed {
        /// Serializes to JSON.
        write: fn(&K) -> Option<Vec<u8>>,
        /// Deserializes from JSON.
        read: fn(&[u8]) -> Option<K>,
        /// The dictionary: JSON of the first objects, and of later ones that compressed badly.
        dictionary: Mutex<Arc<[u8]>>,
    },
}

impl<K> Clone for StoredObject<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(object) => Self::Whole(Arc::clone(object)),
            Self::Compressed(compressed) => Self::Compressed(CompressedObject {
                text: Arc::clone(&compressed.text),
                dictionary: Arc::clone(&compressed.dictionary),
                read: compressed.read,
            }),
        }
    }
}

impl<K> StorageFormat<K> {
    /// Creates the format that serializes and compresses.
    pub(crate) fn compressed() -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        Self::Compressed {
            write: |object| serde_json::to_vec(object).ok(),
            read: |text| serde_json::from_slice(text).ok(),
            dictionary: Mutex::default(),
        }
    }

    /// Converts an object to its stored form.
    pub(crate) fn keep(&self, object: Arc<K>) -> StoredObject<K> {
        let Self::Compressed {
            write,
            read,
            dictionary,
        } = self
        else {
            return StoredObject::Whole(object);
        };
        let Some(json) = write(&object) else {
            return StoredObject::Whole(object);
        };
        let mut known = dictionary.lock();
        let dictionary = Arc::clone(&known);
        let text = compress_prepend_size_with_dict(&json, &dictionary);
        let is_unlike = dictionary.is_empty() || text.len() * 4 > json.len();
        if is_unlike && dictionary.len() < DICTIONARY_BYTES {
            let more = json.len().min(DICTIONARY_BYTES - dictionary.len());
            *known = [&*dictionary, &json[..more]].concat().into();
        }
        StoredObject::Compressed(CompressedObject {
            text: text.into(),
            dictionary,
            read: *read,
        })
    }
}

impl<K> StoredObject<K> {
    /// Returns the object, or `None` if its own serialization cannot be decoded. No kind is known for which decoding
    /// fails.
    pub(crate) fn open(&self) -> Option<Arc<K>> {
        match self {
            Self::Whole(object) => Some(Arc::clone(object)),
            Self::Compressed(CompressedObject { text, dictionary, read }) => {
                let json = decompress_size_prepended_with_dict(text, dictionary).ok();
                let object = json.and_then(|json| read(&json));
                debug_assert!(object.is_some(), "an object cannot be decoded as it was encoded");
                object.map(Arc::new)
            }
        }
    }

    /// Returns whether both objects are the same allocation.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => Arc::ptr_eq(one, other),
            (Self::Compressed(one), Self::Compressed(other)) => Arc::ptr_eq(&one.text, &other.text),
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
            StoredObject::Whole(_) => panic!("it is not compressed"),
            StoredObject::Compressed(compressed) => compressed.text.len(),
        }
    }

    fn dictionary(format: &StorageFormat<ConfigMap>) -> usize {
        match format {
            StorageFormat::Whole => 0,
            StorageFormat::Compressed { dictionary, .. } => dictionary.lock().len(),
        }
    }

    #[test]
    fn object_similar_to_others_takes_little_memory() {
        let format = StorageFormat::compressed();
        let data: Vec<String> = (0..100)
            .map(|number| format!("the value of number {}", number * 7919))
            .collect();
        let with = |last: &'static str| {
            let data = data.iter().map(|text| (text.as_str(), "some value"));
            object(last, &data.collect::<Vec<_>>())
        };
        let first = format.keep(Arc::new(with("first")));
        let second = format.keep(Arc::new(with("second")));
        assert!(
            size(&second) * 10 < size(&first),
            "{} and {}",
            size(&first),
            size(&second)
        );
        for (kept, name) in [(&first, "first"), (&second, "second")] {
            assert_eq!(*kept.open().unwrap(), with(name));
        }
        let known = dictionary(&format);
        assert!(known > 0);
        format.keep(Arc::new(with("third")));
        assert_eq!(dictionary(&format), known, "there is nothing new in it");
    }

    #[test]
    fn whole_storage_format_keeps_an_object_unchanged() {
        let object = Arc::new(object("a", &[]));
        let kept = StorageFormat::Whole.keep(Arc::clone(&object));
        assert!(Arc::ptr_eq(&kept.open().unwrap(), &object));
    }

    proptest! {
        #[test]
        fn compressed_object_is_decompressed_unchanged(
            objects in prop::collection::vec(("[a-z]{1,8}", prop::collection::vec(("[a-z]{1,9}", ".{0,400}"), 0..12)), 1..24)
        ) {
            let format = StorageFormat::compressed();
            let objects: Vec<ConfigMap> = objects
                .iter()
                .map(|(name, data)| {
                    let data: Vec<_> = data.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                    object(name, &data)
                })
                .collect();
            let kept: Vec<_> = objects.iter().map(|object| format.keep(Arc::new(object.clone()))).collect();
            for (kept, object) in kept.iter().zip(&objects) {
                prop_assert_eq!(&*kept.open().unwrap(), object);
            }
            prop_assert!(dictionary(&format) <= DICTIONARY_BYTES);
        }
    }
}
