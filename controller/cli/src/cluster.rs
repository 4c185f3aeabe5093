//! The cluster on which the plugin acts, for people.

/// Which cluster the plugin acts on, and as which user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterContext {
    pub(crate) context: String,
    pub(crate) server: String,
    pub(crate) user: String,
    /// Whether the name of a node has to be typed to start its maintenance.
    pub(crate) careful: bool,
}
