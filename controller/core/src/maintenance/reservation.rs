//! Reservation of a node while a NodeMaintenance for it is being created.
//!
//! Admission happens before an object is stored, so two objects that are created at the same time do not see each
//! other. Each request first creates the Lease of its node; the API server lets only one of them succeed.
//!
//! ```text
//!  create ─▶ create the Lease ──▶ check whether another one is stored ─▶ admitted ─▶ stored
//!               │ it exists                                                            │ seen by the controller
//!               └─▶ refused, unless it has expired or is for the same object            └─▶ the Lease is deleted
//! ```
//!
//! The Lease of a stored object is deleted only after the controller has seen the object, and a request checks for
//! stored objects only after it has created the Lease: so one of two requests sees the other's object or its Lease.
//! The Lease of an object that was never stored expires.

use drydock_api::maintenance::{Group, NodeMaintenance, RESERVATION, RESERVED_FOR};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};

/// Validity of a reservation in seconds: longer than a request can take (API servers abort requests after 60 s).
pub const DURATION_SECONDS: i32 = 75;

/// Returns the name of a node's reservation.
pub fn name(node: &str) -> String {
    format!("maintenance-{node}")
}

/// Returns the node name in the name of a reservation.
pub fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix("maintenance-")
}

/// Returns the reservation of a node for an object, named `group/name`. Its holder is the UID that the object will have:
/// API servers assign it before they request a review. If the review has none, the holder is the UID of the request.
pub fn of(node: &str, object: &str, uid: &str, now: Timestamp) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name(node)),
            labels: Some([(RESERVATION.to_owned(), "true".to_owned())].into()),
            annotations: Some([(RESERVED_FOR.to_owned(), object.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(uid.into()),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_duration_seconds: Some(DURATION_SECONDS),
            ..LeaseSpec::default()
        }),
    }
}

/// Returns whether a reservation may be taken over for an object: it has expired, or is for the same object, which
/// the API server stores only once.
pub fn is_free(lease: &Lease, object: &str, now: Timestamp) -> bool {
    is_for(lease, object) || expires(lease, now) <= now
}

/// Returns whether a reservation is for this object.
pub fn is_for(lease: &Lease, object: &str) -> bool {
    object_of(lease) == Some(object)
}

/// Returns the name of the object, `group/name`, that a reservation is for.
fn object_of(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(RESERVED_FOR).map(String::as_str)
}

/// Returns the object's name in a reservation: `group/name`.
pub fn object_name(group: Group, object: &NodeMaintenance) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    format!("{}/{name}", group.as_str())
}

/// Returns whether the reserved object, whose name is that of `object`, has been stored since the reservation. An
/// older `object` is an earlier one of the same name.
///
/// The UID proves it. The time of creation, which also suffices, may be earlier than the reservation: API servers set it
/// before the review that reserves the node, and without fractions of a second. The time is for reservations whose holder
/// is the UID of a request.
pub fn is_stored(lease: &Lease, name: &str, object: &NodeMaintenance) -> bool {
    let spec = lease.spec.as_ref();
    let acquired = spec.and_then(|spec| spec.acquire_time.as_ref());
    let created = object.metadata.creation_timestamp.as_ref();
    let is_newer = acquired
        .zip(created)
        .is_some_and(|(acquired, created)| created.0.as_second() >= acquired.0.as_second());
    let holder = spec.and_then(|spec| spec.holder_identity.as_ref());
    let is_holder = holder.is_some() && holder == object.metadata.uid.as_ref();
    is_for(lease, name) && (is_holder || is_newer)
}

/// Returns when a reservation expires. A reservation without a time, or with a longer validity than Drydock's, expires
/// immediately.
pub fn expires(lease: &Lease, now: Timestamp) -> Timestamp {
    let spec = lease.spec.as_ref();
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|renewed| renewed.0);
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let until = renewed.zip(seconds).and_then(|(renewed, seconds)| {
        let lasts = SignedDuration::from_secs(seconds.clamp(0, DURATION_SECONDS).into());
        renewed.checked_add(lasts).ok()
    });
    // A time far in the future would reserve the node forever.
    let latest = now
        .checked_add(SignedDuration::from_secs((2 * DURATION_SECONDS).into()))
        .unwrap_or(now);
    until.filter(|until| *until <= latest).unwrap_or(now)
}

/// Returns a message about the object of a reservation and the rest of its validity, rounded up to seconds.
pub fn message(lease: &Lease, now: Timestamp) -> String {
    let object = object_of(lease).unwrap_or("it");
    let left = expires(lease, now).duration_since(now).as_millis();
    let seconds = (left + 999) / 1000;
    format!("{object} is being created, or was deleted at once; in the latter case, try again in {seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_the_object_and_the_rest_of_the_validity() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let lease = of("n", "g/a", "uid", now);
        for (later, lease, expected) in [
            (
                5,
                &lease,
                "g/a is being created, or was deleted at once; in the latter case, try again in 70 s",
            ),
            (
                0,
                &Lease::default(),
                "it is being created, or was deleted at once; in the latter case, try again in 0 s",
            ),
        ] {
            assert_eq!(message(lease, now + SignedDuration::from_secs(later)), expected);
        }
    }

    #[test]
    fn reservation_is_free_if_expired_or_for_the_same_object() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later = now + SignedDuration::from_secs(DURATION_SECONDS.into());
        let lease = of("n", "g/a", "uid", now);
        assert!(!is_free(&lease, "g/b", now));
        assert!(!is_free(&lease, "h/a", later - SignedDuration::from_secs(1)));
        assert!(is_free(&lease, "g/a", now));
        assert!(is_free(&lease, "g/b", later));
        assert_eq!(node_of(lease.metadata.name.as_deref().unwrap()), Some("n"));
        assert!(is_free(&Lease::default(), "g/b", now), "it has no end");
        let far = of("n", "g/a", "uid", now + SignedDuration::from_hours(24));
        assert!(is_free(&far, "g/b", now));
    }

    #[test]
    fn object_of_the_reservation_or_not_older_counts_as_stored() {
        let now: Timestamp = "2026-01-01T00:00:10.7Z".parse().unwrap();
        for (name, uid, created, stored) in [
            ("a", "other", "2026-01-01T00:00:10Z", true),
            ("a", "other", "2026-01-01T00:00:12Z", true),
            ("a", "other", "2026-01-01T00:00:09Z", false),
            ("a", "uid", "2026-01-01T00:00:09Z", true),
            ("b", "other", "2026-01-01T00:00:12Z", false),
        ] {
            let object: NodeMaintenance = serde_json::from_value(serde_json::json!({
                "metadata": {"name": name, "uid": uid, "creationTimestamp": created}, "spec": {"nodeName": "n"},
            }))
            .unwrap();
            let lease = of("n", "nodemaintenance.medik8s.io/a", "uid", now);
            let object_name = object_name(Group::Medik8s, &object);
            assert_eq!(
                is_stored(&lease, &object_name, &object),
                stored,
                "{name} {uid} {created}"
            );
        }
    }
}
