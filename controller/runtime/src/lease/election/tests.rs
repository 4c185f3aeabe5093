use super::{Election, ElectionStep, LeaseRecord, LeaseRequest, RequestOutcome, Terms};
use std::time::Duration;
use tokio::time::Instant;

/// A candidate with the identity `me`, and a clock that the test advances.
struct Test {
    election: Election,
    now: Instant,
}

impl Test {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            election: Election::new("me".to_owned(), Terms::default(), now),
            now,
        }
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    /// Returns the candidate's current request, if any.
    fn pending(&self) -> Option<LeaseRequest> {
        match self.election.step(self.now) {
            ElectionStep::Send(action) => Some(action),
            ElectionStep::Wait(until) => {
                assert!(until > self.now, "it would wait for the past");
                None
            }
        }
    }

    /// Expects this request and responds after 100 ms.
    fn complete_with(&mut self, action: &LeaseRequest, response: RequestOutcome) {
        assert_eq!(self.pending().as_ref(), Some(action));
        let sent = self.now;
        self.wait(100);
        self.election.complete(action, response, sent, self.now);
    }

    fn leads(&self) -> bool {
        self.election.leads_until(self.now).is_some()
    }

    fn wins(&mut self) {
        self.complete_with(&LeaseRequest::Read, RequestOutcome::Missing);
        self.complete_with(&LeaseRequest::Create, is("me", "1"));
        assert!(self.leads());
    }
}

fn is(holder: &str, version: &str) -> RequestOutcome {
    RequestOutcome::Done(LeaseRecord {
        holder: holder.to_owned(),
        duration: Duration::from_secs(15),
        transitions: 3,
        version: version.to_owned(),
    })
}

fn renew(version: &str) -> LeaseRequest {
    LeaseRequest::Renew {
        version: version.to_owned(),
    }
}

fn take(version: &str, transitions: i32) -> LeaseRequest {
    LeaseRequest::Take {
        version: version.to_owned(),
        transitions,
    }
}

#[test]
fn first_candidate_creates_the_lease_and_leads() {
    let mut test = Test::new();
    test.wins();
    assert_eq!(test.pending(), None);
    test.wait(1900);
    test.complete_with(&renew("1"), is("me", "2"));
    assert!(test.leads());
}

#[test]
fn a_free_lease_is_taken_at_once() {
    let mut test = Test::new();
    test.complete_with(&LeaseRequest::Read, is("", "7"));
    assert!(!test.leads(), "reading makes nobody leader");
    test.complete_with(&take("7", 4), is("me", "8"));
    assert!(test.leads());
}

#[test]
fn held_lease_is_acquired_once_unchanged_for_the_duration() {
    let mut test = Test::new();
    test.complete_with(&LeaseRequest::Read, is("other", "7"));
    for _ in 0..3 {
        assert_eq!(test.pending(), None);
        test.wait(2000);
        test.complete_with(&LeaseRequest::Read, is("other", "7"));
    }
    test.wait(2000);
    test.complete_with(&LeaseRequest::Read, is("other", "8"));
    let changed = test.now;
    while test.now + Duration::from_millis(2200) < changed + Duration::from_secs(15) {
        test.wait(2000);
        test.complete_with(&LeaseRequest::Read, is("other", "8"));
    }
    let until_free = changed + Duration::from_secs(15) - test.now;
    test.wait(u64::try_from(until_free.as_millis()).unwrap() - 1);
    assert_ne!(test.pending(), Some(take("8", 4)));
    test.wait(1);
    test.complete_with(&take("8", 4), is("me", "9"));
    assert!(test.leads());
}

#[test]
fn longer_lease_duration_of_holder_is_respected() {
    let mut test = Test::new();
    let slow = LeaseRecord {
        holder: "other".to_owned(),
        duration: Duration::from_secs(60),
        transitions: 0,
        version: "7".to_owned(),
    };
    test.complete_with(&LeaseRequest::Read, RequestOutcome::Done(slow.clone()));
    test.wait(59_000);
    test.complete_with(&LeaseRequest::Read, RequestOutcome::Done(slow));
    test.wait(900);
    test.complete_with(&take("7", 1), is("me", "8"));
}

#[test]
fn candidate_that_lost_the_race_waits_again() {
    let mut test = Test::new();
    test.complete_with(&LeaseRequest::Read, is("", "7"));
    test.complete_with(&take("7", 4), RequestOutcome::Conflict);
    test.complete_with(&LeaseRequest::Read, is("other", "8"));
    assert!(!test.leads());
    assert_eq!(test.pending(), None);
}

#[test]
fn leadership_ends_in_time_without_a_confirmed_renewal() {
    let mut test = Test::new();
    test.complete_with(&LeaseRequest::Read, RequestOutcome::Missing);
    let sent = test.now;
    test.complete_with(&LeaseRequest::Create, is("me", "1"));
    while test.now < sent + Duration::from_millis(9900) {
        assert!(test.leads());
        match test.pending() {
            Some(action) => test.complete_with(&action, RequestOutcome::Unknown(String::new())),
            None => test.wait(100),
        }
    }
    test.wait(100);
    assert!(!test.leads());
}

#[test]
fn a_lost_reply_is_cleared_up_without_losing_the_lead() {
    let mut test = Test::new();
    test.wins();
    test.wait(2000);
    test.complete_with(&renew("1"), RequestOutcome::Unknown(String::new()));
    test.wait(2000);
    test.complete_with(&renew("1"), RequestOutcome::Conflict);
    assert!(test.leads());
    test.complete_with(&LeaseRequest::Read, is("me", "2"));
    test.complete_with(&renew("2"), is("me", "3"));
    assert!(test.leads());
}

#[test]
fn lost_reply_to_taking_the_lease_makes_no_leader() {
    let mut test = Test::new();
    test.complete_with(&LeaseRequest::Read, is("", "7"));
    test.complete_with(&take("7", 4), RequestOutcome::Unknown(String::new()));
    test.wait(2000);
    test.complete_with(&LeaseRequest::Read, is("me", "8"));
    assert!(!test.leads());
    test.complete_with(&take("8", 3), is("me", "9"));
    assert!(test.leads());
}

#[test]
fn leader_stops_when_another_holder_is_seen() {
    let mut test = Test::new();
    test.wins();
    test.wait(2000);
    test.complete_with(&renew("1"), RequestOutcome::Conflict);
    test.complete_with(&LeaseRequest::Read, is("other", "5"));
    assert!(!test.leads());
}

#[test]
fn deleted_lease_ends_leadership_and_is_awaited_as_renewed() {
    let mut test = Test::new();
    test.wins();
    test.wait(2000);
    test.complete_with(&renew("1"), RequestOutcome::Missing);
    assert!(!test.leads());
    let deleted = test.now;
    while test.pending() != Some(LeaseRequest::Create) {
        match test.pending() {
            Some(action) => test.complete_with(&action, RequestOutcome::Missing),
            None => test.wait(100),
        }
    }
    assert_eq!((test.now - deleted).as_secs(), 15);
}

#[test]
fn a_missing_namespace_is_no_reason_for_haste() {
    let mut test = Test::new();
    test.complete_with(&LeaseRequest::Read, RequestOutcome::Missing);
    test.complete_with(&LeaseRequest::Create, RequestOutcome::Missing);
    assert_eq!(test.pending(), None);
    test.wait(2000);
    assert_eq!(test.pending(), Some(LeaseRequest::Create));
}

#[test]
fn resigning_candidate_releases_the_lease_only_while_leading() {
    let mut test = Test::new();
    test.wins();
    let mut late = Test {
        election: test.election.clone(),
        now: test.now,
    };
    assert_eq!(
        test.election.resign(test.now),
        Some(LeaseRequest::Release {
            version: "1".to_owned()
        })
    );
    assert!(!test.leads());
    late.wait(10_000);
    assert_eq!(late.election.resign(late.now), None, "another may have it by now");
    assert_eq!(Test::new().election.resign(test.now), None);
}
