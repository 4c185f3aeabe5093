//! The cluster that the plugin uses, in human-readable form.

/// Names of the cluster and the user with which the plugin acts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterContext {
    pub(crate) context: String,
    pub(crate) server: String,
    pub(crate) user: String,
    /// Whether a user has to type the name of a node to start its maintenance.
    pub(crate) careful: bool,
}
