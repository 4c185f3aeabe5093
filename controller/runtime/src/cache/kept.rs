//! How a cache keeps an object.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

/// An object as it is, or written down: its structs take several times as much memory as its text.
#[derive(Debug)]
pub(crate) enum Kept<K> {
    /// As it is.
    Whole(Arc<K>),
    /// As JSON, and how to read it.
    Packed(Arc<[u8]>, fn(&[u8]) -> Option<K>),
}

/// How objects are written down.
pub(crate) type Pack<K> = fn(Arc<K>) -> Kept<K>;

impl<K> Clone for Kept<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Whole(object) => Self::Whole(Arc::clone(object)),
            Self::Packed(text, read) => Self::Packed(Arc::clone(text), *read),
        }
    }
}

impl<K> Kept<K> {
    /// Writes an object down.
    pub(crate) fn packed(object: Arc<K>) -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        match serde_json::to_vec(&*object) {
            Ok(text) => Self::Packed(text.into(), |text| serde_json::from_slice(text).ok()),
            Err(_) => Self::Whole(object),
        }
    }

    /// The object. One that was written down and cannot be read again, which no kind is known for, is not there.
    pub(crate) fn open(&self) -> Option<Arc<K>> {
        match self {
            Self::Whole(object) => Some(Arc::clone(object)),
            Self::Packed(text, read) => {
                let object = read(text);
                debug_assert!(object.is_some(), "an object cannot be read as it was written");
                object.map(Arc::new)
            }
        }
    }

    /// Whether both are the very same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => Arc::ptr_eq(one, other),
            (Self::Packed(one, _), Self::Packed(other, _)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}
