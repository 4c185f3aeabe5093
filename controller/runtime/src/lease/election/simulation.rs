//! Simulates candidates over a network that loses, delays and reorders messages, with clocks of different rates and
//! processes that pause or die. At no time do two candidates lead, and once the faults stop, one leads.

use super::{Election, ElectionStep, LeaseRecord, LeaseRequest, RequestOutcome, Terms};
use fastrand::Rng;
use proptest::prelude::*;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time for which a process pauses or is disconnected, in milliseconds.
const LONGEST_TROUBLE: f64 = 40_000.0;
/// Step of the simulated time. All times of the simulation are in milliseconds.
const TICK: u64 = 50;
const STORM: u64 = 150_000;
const CALM: u64 = 60_000;
const GIVES_UP: Duration = Duration::from_secs(5);

/// The rates and limits of the simulated faults.
#[derive(Clone, Copy, Debug)]
struct Weather {
    lost: f64,
    longest_delay: f64,
    stands_still: f64,
    cut_off: f64,
    dies: f64,
    resigns: f64,
    fastest_clock: f64,
}

#[derive(Default)]
struct Server {
    record: Option<LeaseRecord>,
    writes: u32,
}

impl Server {
    fn take_in(&mut self, by: &str, action: &LeaseRequest) -> RequestOutcome {
        let duration = Terms::default().duration;
        let held = |holder: &str, transitions| LeaseRecord {
            holder: holder.to_owned(),
            duration,
            transitions,
            version: String::new(),
        };
        let (expected, new) = match action {
            LeaseRequest::Read => {
                return self
                    .record
                    .clone()
                    .map_or(RequestOutcome::Missing, RequestOutcome::Done);
            }
            LeaseRequest::Create if self.record.is_some() => return RequestOutcome::Conflict,
            LeaseRequest::Create => (None, held(by, 0)),
            LeaseRequest::Take { version, transitions } => (Some(version), held(by, *transitions)),
            LeaseRequest::Renew { version } => (Some(version), held(by, 0)),
            LeaseRequest::Release { version } => (Some(version), held("", 0)),
        };
        match (&self.record, expected) {
            (None, Some(_)) => return RequestOutcome::Missing,
            (Some(record), Some(version)) if record.version != *version => return RequestOutcome::Conflict,
            _ => {}
        }
        self.writes += 1;
        let record = LeaseRecord {
            version: self.writes.to_string(),
            ..new
        };
        self.record = Some(record.clone());
        RequestOutcome::Done(record)
    }
}

struct Candidate {
    election: Election,
    identity: String,
    rate: f64,
    /// The pending request: its number, action and send time.
    waits: Option<(u64, LeaseRequest, Instant)>,
    stands_still_until: u64,
    cut_off_until: u64,
}

struct Message {
    at: u64,
    candidate: usize,
    number: u64,
    identity: String,
    body: Body,
}

enum Body {
    Request(LeaseRequest),
    Reply(RequestOutcome),
}

struct ElectionWorld {
    base: Instant,
    chance: Rng,
    weather: Weather,
    server: Server,
    candidates: Vec<Candidate>,
    messages: Vec<Message>,
    sent: u64,
    deaths: u32,
}

impl ElectionWorld {
    fn new(seed: u64, candidates: usize, weather: Weather) -> Self {
        let base = Instant::now();
        let mut chance = Rng::with_seed(seed);
        let candidate = |index| {
            let identity = format!("candidate-{index}");
            Candidate {
                election: Election::new(identity.clone(), Terms::default(), base),
                identity,
                rate: 1.0 + chance.f64() * (weather.fastest_clock - 1.0),
                waits: None,
                stands_still_until: 0,
                cut_off_until: 0,
            }
        };
        let candidates = (0..candidates).map(candidate).collect();
        Self {
            base,
            chance,
            weather,
            server: Server::default(),
            candidates,
            messages: Vec::new(),
            sent: 0,
            deaths: 0,
        }
    }

    fn chance_of(&mut self, probability: f64) -> bool {
        self.chance.f64() < probability
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small and positive"
    )]
    fn up_to(&mut self, longest: f64) -> u64 {
        (self.chance.f64() * longest) as u64
    }

    fn delay(&mut self) -> u64 {
        self.up_to(self.weather.longest_delay)
    }

    /// Returns whether a message to or from this candidate is lost.
    fn loses(&mut self, now: u64, index: usize) -> bool {
        now < self.candidates[index].cut_off_until || self.chance_of(self.weather.lost)
    }

    /// Returns the time on the candidate's own clock.
    fn clock(&self, index: usize, now: u64) -> Instant {
        self.base + Duration::from_millis(now).mul_f64(self.candidates[index].rate)
    }

    fn send(&mut self, now: u64, index: usize, action: LeaseRequest) {
        self.sent += 1;
        let candidate = &mut self.candidates[index];
        let sent = self.base + Duration::from_millis(now).mul_f64(candidate.rate);
        candidate.waits = Some((self.sent, action.clone(), sent));
        let identity = candidate.identity.clone();
        if !self.loses(now, index) {
            let at = now + self.delay();
            self.messages.push(Message {
                at,
                candidate: index,
                number: self.sent,
                identity,
                body: Body::Request(action),
            });
        }
    }

    fn deliver(&mut self, now: u64) {
        let (due, later) = std::mem::take(&mut self.messages)
            .into_iter()
            .partition(|message| message.at <= now);
        self.messages = later;
        for Message {
            candidate: index,
            number,
            identity,
            body,
            ..
        } in due
        {
            match body {
                Body::Request(action) => {
                    let response = self.server.take_in(&identity, &action);
                    if !self.loses(now, index) {
                        let at = now + self.delay();
                        self.messages.push(Message {
                            at,
                            candidate: index,
                            number,
                            identity,
                            body: Body::Reply(response),
                        });
                    }
                }
                Body::Reply(response) => {
                    let clock = self.clock(index, now);
                    let candidate = &mut self.candidates[index];
                    if now < candidate.stands_still_until {
                        // The candidate reads the reply after its pause.
                        let at = candidate.stands_still_until;
                        self.messages.push(Message {
                            at,
                            candidate: index,
                            number,
                            identity,
                            body: Body::Reply(response),
                        });
                    } else if let Some((_, action, sent)) = candidate.waits.take_if(|waits| waits.0 == number) {
                        candidate.election.complete(&action, response, sent, clock);
                    }
                }
            }
        }
    }

    fn act(&mut self, now: u64, index: usize) {
        if now < self.candidates[index].stands_still_until {
            return;
        }
        if self.chance_of(self.weather.stands_still) {
            self.candidates[index].stands_still_until = now + self.up_to(LONGEST_TROUBLE);
            return;
        }
        if self.chance_of(self.weather.cut_off) {
            self.candidates[index].cut_off_until = now + self.up_to(LONGEST_TROUBLE);
        }
        let clock = self.clock(index, now);
        if self.chance_of(self.weather.dies) {
            self.deaths += 1;
            let identity = format!("candidate-{index}-{}", self.deaths);
            let candidate = &mut self.candidates[index];
            candidate.election = Election::new(identity.clone(), Terms::default(), clock);
            (candidate.identity, candidate.waits) = (identity, None);
        }
        if self.chance_of(self.weather.resigns)
            && let Some(release) = self.candidates[index].election.resign(clock)
        {
            self.send(now, index, release);
        }
        let candidate = &mut self.candidates[index];
        if let Some((_, action, sent)) = candidate.waits.take_if(|waits| clock >= waits.2 + GIVES_UP) {
            candidate
                .election
                .complete(&action, RequestOutcome::Unknown(String::new()), sent, clock);
        }
        if candidate.waits.is_none()
            && let ElectionStep::Send(action) = candidate.election.step(clock)
        {
            self.send(now, index, action);
        }
    }

    fn leaders(&self, now: u64) -> Vec<&str> {
        let leads = |index: &usize| {
            self.candidates[*index]
                .election
                .leads_until(self.clock(*index, now))
                .is_some()
        };
        (0..self.candidates.len())
            .filter(leads)
            .map(|index| self.candidates[index].identity.as_str())
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn election_has_at_most_one_leader_and_one_leader_when_calm(
        seed: u64,
        candidates in 2usize..4,
        lost in 0.0..0.4,
        longest_delay in 1.0..8_000.0,
        stands_still in 0.0..0.001,
        cut_off in 0.0..0.002,
        dies in 0.0..0.0005,
        resigns in 0.0..0.0005,
        fastest_clock in 1.0..1.3,
    ) {
        let weather = Weather { lost, longest_delay, stands_still, cut_off, dies, resigns, fastest_clock };
        let mut world = ElectionWorld::new(seed, candidates, weather);
        let mut led = 0;
        for now in (0..STORM + CALM).step_by(usize::try_from(TICK).unwrap()) {
            if now == STORM {
                let calm = Weather { lost: 0.0, longest_delay: 20.0, stands_still: 0.0, cut_off: 0.0, ..weather };
                world.weather = Weather { dies: 0.0, resigns: 0.0, ..calm };
                for candidate in &mut world.candidates {
                    (candidate.stands_still_until, candidate.cut_off_until) = (now, now);
                }
            }
            world.deliver(now);
            for index in 0..candidates {
                world.act(now, index);
                let leaders = world.leaders(now);
                prop_assert!(leaders.len() <= 1, "at {now} ms both {leaders:?} lead");
                led += leaders.len();
            }
        }
        prop_assert_eq!(world.leaders(STORM + CALM - TICK).len(), 1, "nobody leads though all is calm");
        prop_assert!(led > 0);
    }
}
