//! The identity of a process.

/// The identity of a process: in logs, in metrics, and as a client of the API server.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// The component's name: `drydock-agent`.
    pub name: &'static str,
    /// The component's version.
    pub version: &'static str,
}
