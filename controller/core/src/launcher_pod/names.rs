//! Names made from other names, the same each time.

use uuid::Uuid;

/// The names from which UUIDs are made here, apart from everybody else's.
const NAMES: Uuid = Uuid::from_u128(0x51b8_0c0d_93e4_5f0b_8a3f_64c1_0d7e_22b6);

/// A UUID that is always the same for the same words.
pub(super) fn stable_uuid(words: &[&str]) -> String {
    // No name of Kubernetes has a `/`.
    Uuid::new_v5(&NAMES, words.join("/").as_bytes()).to_string()
}
