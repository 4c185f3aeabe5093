//! Which answers of the API server are refusals, and which only mean that a request has to be repeated.

use kube::core::Status;

/// Answers in the range of client errors that pass by themselves: the object is not there yet or no more (404), the
/// request timed out (408), somebody else wrote at the same time (409, which a ResourceQuota answers under contention
/// too), and the API server is throttling (429, API Priority and Fairness).
const PASSING: [u16; 4] = [404, 408, 409, 429];

/// Whether the API server refuses a request for good, so that people have to read why: by validation, authorization, a
/// quota, a policy or a webhook. Everything else, also any 5xx, means that the same request may succeed when it is
/// repeated, and is no reason for a condition or an event.
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
