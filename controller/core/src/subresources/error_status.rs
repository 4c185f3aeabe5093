//! Failures of requests, in the form that clients read.

use serde_json::{Value, json};

use super::GroupResource;

/// A failed request: a `Status` of Kubernetes' API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubresourceError {
    /// HTTP status code.
    pub code: u16,
    /// Kubernetes' reason for the code.
    pub reason: &'static str,
    /// Message for users. The message is short, because websocket clients read at most 1,024 bytes of the whole body.
    pub message: String,
    /// The object that the failure is about.
    pub object: Option<(GroupResource, String)>,
}

impl SubresourceError {
    fn about(code: u16, reason: &'static str, message: String, resource: GroupResource, name: &str) -> Self {
        Self {
            code,
            reason,
            message,
            object: Some((resource, name.into())),
        }
    }

    fn plain(code: u16, reason: &'static str, message: String) -> Self {
        Self {
            code,
            reason,
            message,
            object: None,
        }
    }

    /// Returns the failure for an object that does not exist.
    pub fn not_found(resource: GroupResource, name: &str) -> Self {
        let message = format!("{}.kubevirt.io \"{name}\" not found", resource.singular());
        Self::about(404, "NotFound", message, resource, name)
    }

    /// Returns the failure for an object whose state does not allow the operation.
    pub fn conflict(resource: GroupResource, name: &str, why: &str) -> Self {
        let what = resource.singular();
        let message = format!("Operation cannot be fulfilled on {what}.kubevirt.io \"{name}\": {why}");
        Self::about(409, "Conflict", message, resource, name)
    }

    /// Returns the failure for an invalid request.
    pub fn bad_request(why: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", why.into())
    }

    /// Returns the failure for a user who lacks the required permission.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::plain(403, "Forbidden", message.into())
    }

    /// Returns the failure for an unauthenticated user: the request did not come through kube-apiserver.
    pub fn unauthorized() -> Self {
        Self::plain(401, "Unauthorized", "Unauthorized".into())
    }

    /// Returns the failure for a path that is not served.
    pub fn no_such_path() -> Self {
        Self::plain(
            404,
            "NotFound",
            "the server could not find the requested resource".into(),
        )
    }

    /// Returns the failure for a path that is served, but not with this method.
    pub fn method_not_allowed(allowed: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource; allowed: {allowed}");
        Self::plain(405, "MethodNotAllowed", message)
    }

    /// Returns the failure for a user who already has the maximum number of streams.
    pub fn too_many(message: impl Into<String>) -> Self {
        Self::plain(429, "TooManyRequests", message.into())
    }

    /// Returns the failure for a feature that Drydock does not support.
    pub fn not_supported(what: &str) -> Self {
        Self::bad_request(format!("Drydock does not support {what}."))
    }

    /// Returns the failure for an error of the API server that this request depends on.
    pub fn internal(why: impl AsRef<str>) -> Self {
        Self::plain(
            500,
            "InternalError",
            format!("Internal error occurred: {}", why.as_ref()),
        )
    }

    /// Returns the body of the response.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some((resource, name)) = &self.object {
            status["details"] = json!({"group": "kubevirt.io", "kind": resource.singular(), "name": name});
        }
        if self.reason == "InternalError" {
            let cause = self.message.trim_start_matches("Internal error occurred: ");
            status["details"] = json!({"causes": [{"message": cause}]});
        }
        status
    }
}
