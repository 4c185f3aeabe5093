//! Folders of hostile pods.
