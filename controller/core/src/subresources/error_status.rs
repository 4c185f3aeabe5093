//! Why a request fails, as clients read it.

use serde_json::{Value, json};

use super::GroupResource;

/// A failed request: a `Status` of Kubernetes' API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubresourceError {
    /// HTTP status code.
    pub code: u16,
    /// Kubernetes' reason for the code.
    pub reason: &'static str,
    /// Message for users. It is short, because websocket clients read at most 1,024 bytes of the whole body.
    pub message: String,
    /// Which object it is about.
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

    /// There is no such object.
    pub fn not_found(resource: GroupResource, name: &str) -> Self {
        let message = format!("{}.kubevirt.io \"{name}\" not found", resource.singular());
        Self::about(404, "NotFound", message, resource, name)
    }

    /// The object is not in a state in which this can be done.
    pub fn conflict(resource: GroupResource, name: &str, why: &str) -> Self {
        let what = resource.singular();
        let message = format!("Operation cannot be fulfilled on {what}.kubevirt.io \"{name}\": {why}");
        Self::about(409, "Conflict", message, resource, name)
    }

    /// The request itself is wrong.
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

    /// The path is not served.
    pub fn no_such_path() -> Self {
        Self::plain(
            404,
            "NotFound",
            "the server could not find the requested resource".into(),
        )
    }

    /// The path is served, but not with this method.
    pub fn method_not_allowed(allowed: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource; allowed: {allowed}");
        Self::plain(405, "MethodNotAllowed", message)
    }

    /// The user has as many streams as one may have.
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

    /// The body of the response.
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
