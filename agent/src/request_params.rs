//! The parameters of the agent's requests: each names the agent as the field manager.

use drydock_api::AGENT_FIELD_MANAGER;
use kube::api::{PatchParams, PostParams};

/// Returns the parameters of a creation.
pub(crate) fn creating() -> PostParams {
    PostParams {
        field_manager: Some(AGENT_FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

/// Returns the parameters of a merge patch or a strategic merge patch.
pub(crate) fn patching() -> PatchParams {
    PatchParams {
        field_manager: Some(AGENT_FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}
