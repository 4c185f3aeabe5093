//! Classifies responses of the API server: refusals versus transient errors that are retried.

use kube::core::Status;

/// Client errors (4xx) that are transient: the object does not exist yet or any more (404), the request timed out
/// (408), a concurrent write (409, which a ResourceQuota also returns under contention), and throttling by the API
/// server (429, API Priority and Fairness).
const PASSING: [u16; 4] = [404, 408, 409, 429];

/// Returns whether the API server refuses a request permanently, so that the reason must be reported to the user: by
/// validation, authorization, a quota, a policy or a webhook. Any other status, including 5xx, means that a retry of
/// the same request may succeed; it causes neither a condition nor an event.
pub fn is_refusal(status: &Status) -> bool {
    (400..500).contains(&status.code) && !PASSING.contains(&status.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_errors_that_do_not_pass_are_refusals() {
        for (code, reason, refusal) in [
            (400, "BadRequest", true),
            (401, "Unauthorized", true),
            (403, "Forbidden", true),
            (404, "NotFound", false),
            (405, "MethodNotAllowed", true),
            (408, "Timeout", false),
            (409, "Conflict", false),
            (410, "Expired", true),
            (413, "RequestEntityTooLarge", true),
            (422, "Invalid", true),
            (429, "TooManyRequests", false),
            (500, "InternalError", false),
            (503, "ServiceUnavailable", false),
            (504, "Timeout", false),
            (200, "", false),
        ] {
            let status = Status::failure("exceeded quota", reason).with_code(code);
            assert_eq!(is_refusal(&status), refusal, "{code}");
        }
    }
}
