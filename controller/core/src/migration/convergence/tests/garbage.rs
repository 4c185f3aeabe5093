//! Rules that hold for all guests, and for samples that no guest could produce.

use super::*;

fn guest() -> impl Strategy<Value = SimulatedGuest> {
    let size = |range: std::ops::Range<u64>| range.prop_map(|mib| mib * MIB);
    (
        size(64..20_000),
        size(0..20_000),
        size(0..400),
        size(0..20_000),
        size(1..400),
        any::<bool>(),
    )
        .prop_map(
            |(memory, disks, dirty, working_set, bandwidth, auto_converge)| SimulatedGuest {
                memory,
                disks,
                dirty,
                working_set: working_set.min(memory),
                bandwidth,
                auto_converge,
                cut_at: None,
            },
        )
}

fn time() -> impl Strategy<Value = Option<Duration>> {
    prop::option::of((1u64..400).prop_map(Duration::from_secs))
}

fn allowed() -> impl Strategy<Value = (Option<Duration>, Option<Duration>, bool, bool)> {
    (time(), time(), any::<bool>(), any::<bool>())
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), 0..1u64 << 40, Just(u64::MAX), any::<u64>()]
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0u64..2000).prop_map(Duration::from_secs),
        number().prop_map(Duration::from_millis),
        Just(Duration::MAX),
    ]
}

fn sample() -> impl Strategy<Value = Sample> {
    let counters = (number(), number(), number(), number(), number());
    let rates = (prop::option::of(number()), prop::option::of(number()), number());
    let state = (duration(), prop::option::of(duration()), any::<bool>(), any::<bool>());
    (counters, rates, state).prop_map(|(counters, rates, state)| Sample {
        data_total: counters.0,
        data_processed: counters.1,
        data_remaining: counters.2,
        memory_remaining: counters.3,
        disk_remaining: counters.4,
        dirty_rate: rates.0,
        bandwidth: rates.1,
        iteration: rates.2,
        elapsed: state.0,
        expected_downtime: state.1,
        post_copy: state.2,
        paused: state.3,
    })
}

fn bounded(guest: &SimulatedGuest, allowed: (Option<Duration>, Option<Duration>, bool, bool)) -> ConvergenceLimits {
    ConvergenceLimits {
        completion_per_gib: allowed.0,
        progress: allowed.1,
        ..with(guest, allowed.2, allowed.3)
    }
}

proptest! {
    #[test]
    fn abort_never_comes_before_the_limit(guest in guest(), allowed in allowed()) {
        let limits = bounded(&guest, allowed);
        let story = moves(&guest, limits, &[]);
        let paused = story.actions.iter().any(|(_, action)| action.act == Act::Pause);
        for (at, action) in story.actions.iter().filter(|(_, action)| action.act == Act::Abort) {
            let at = Duration::from_secs(*at);
            let least = match action.reason {
                "CompletionTimeExceeded" => limits.completion_time().unwrap() * if paused { 2 } else { 1 },
                "NoProgress" => limits.progress.unwrap(),
                other => panic!("{other} is no reason to abort"),
            };
            prop_assert!(at >= least, "{:?} before {:?}", at, least);
        }
    }

    #[test]
    fn converging_migration_is_left_alone_until_the_time_limit(guest in guest(), allowed in allowed()) {
        let mut guest = guest;
        guest.dirty = guest.dirty.min(guest.bandwidth - 1);
        let limits = bounded(&guest, allowed);
        let story = moves(&guest, limits, &[]);
        for (at, action) in &story.actions {
            let mild = matches!(action.act, Act::Report | Act::SetDowntime(_));
            let over = limits.completion_time().is_some_and(|time| Duration::from_secs(*at) > time);
            prop_assert!(mild || over, "{:?} after {} s", action, at);
        }
    }

    #[test]
    fn with_limits_every_migration_ends(guest in guest(), post_copy: bool, disruption: bool) {
        let mut guest = guest;
        guest.memory = guest.memory.min(4000 * MIB);
        guest.disks = 0;
        guest.working_set = guest.working_set.min(guest.memory);
        let story = moves(&guest, with(&guest, post_copy, disruption), &[]);
        prop_assert!(story.end != SimulatedEnd::Open, "{:?}", story.actions);
    }

    #[test]
    fn guest_is_paused_only_if_allowed_and_downtime_is_bounded(
        guest in guest(),
        allowed in allowed(),
        most in 1u64..3000,
    ) {
        let limits = ConvergenceLimits { max_downtime: Duration::from_millis(most), ..bounded(&guest, allowed) };
        for (at, action) in moves(&guest, limits, &[]).actions {
            let disks = at <= guest.disks / guest.bandwidth + 1;
            match action.act {
                Act::Pause => prop_assert!(limits.workload_disruption && (!limits.post_copy || disks)),
                Act::StartPostCopy => prop_assert!(limits.workload_disruption && limits.post_copy),
                Act::SetDowntime(time) => prop_assert!(time <= limits.max_downtime),
                Act::Report | Act::Abort => {}
            }
        }
    }

    /// Once the rates are known, a guest that converges ends close to its estimate.
    #[test]
    fn the_estimate_is_near_the_end(memory in 2000u64..20_000, bandwidth in 50u64..200, part in 0u64..80) {
        let guest = SimulatedGuest {
            memory: memory * MIB,
            working_set: memory * MIB,
            bandwidth: bandwidth * MIB,
            dirty: bandwidth * MIB * part / 100,
            ..quiet()
        };
        let limits = ConvergenceLimits { completion_per_gib: None, progress: None, ..limits(&guest) };
        let story = moves(&guest, limits, &[]);
        prop_assert_eq!(story.end, SimulatedEnd::Moved);
        let first_pass = memory / bandwidth + 3;
        for (at, outlook) in story.outlooks.iter().enumerate().skip(usize::try_from(first_pass).unwrap()) {
            let Outlook::Ends(left) = outlook else { panic!("{outlook:?}") };
            let really = story.took.saturating_sub(at as u64 + 1);
            let off = left.as_secs().abs_diff(really);
            prop_assert!(off <= really / 4 + 15, "{} s instead of {} s", left.as_secs(), really);
        }
    }

    #[test]
    fn no_sample_panics_and_no_end_is_past(
        samples in prop::collection::vec(sample(), 0..60),
        allowed in allowed(),
        total in number(),
        bandwidth in prop::option::of(number()),
        most in duration(),
    ) {
        let limits = ConvergenceLimits { total, bandwidth, max_downtime: most, ..bounded(&quiet(), allowed) };
        let mut monitor = Monitor::new(limits);
        for sample in samples {
            let actions = monitor.observe(&sample);
            prop_assert!(!sample.post_copy || actions.is_empty(), "nothing is done in post-copy");
            let progress = monitor.progress(&sample, NOW);
            prop_assert!(progress.estimated_end.is_none_or(|end| end >= NOW));
            prop_assert!(progress.summary.len() < 80, "{}", progress.summary);
            for action in actions {
                prop_assert!(!action.sentence.is_empty() && action.sentence.len() < 300, "{}", action.sentence);
                let within = !matches!(action.act, Act::SetDowntime(time) if time > most);
                prop_assert!(within, "{:?}", action);
            }
        }
    }

    #[test]
    fn nothing_is_aborted_after_post_copy_start(samples in prop::collection::vec(sample(), 1..60)) {
        let limits = ConvergenceLimits { ..with(&busy(), true, true) };
        let mut monitor = Monitor::new(limits);
        let mut requested = false;
        for sample in samples {
            for action in monitor.observe(&sample) {
                prop_assert!(!(requested && action.act == Act::Abort));
                requested |= action.act == Act::StartPostCopy;
            }
        }
    }
}
