//! Actions for simulated guests, and for samples that make no sense.

mod garbage;
mod simulator;

use std::time::Duration;

use drydock_api::kubevirt::migration::MigrationConfiguration;
use proptest::prelude::*;
use simulator::{MIB, SimulatedEnd, SimulatedGuest, Story, moves};

use super::*;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn quiet() -> SimulatedGuest {
    SimulatedGuest {
        memory: 4096 * MIB,
        disks: 0,
        dirty: 20 * MIB,
        working_set: 1024 * MIB,
        bandwidth: 100 * MIB,
        auto_converge: false,
        cut_at: None,
    }
}

fn busy() -> SimulatedGuest {
    SimulatedGuest {
        dirty: 210 * MIB,
        working_set: 2048 * MIB,
        ..quiet()
    }
}

fn limits(guest: &SimulatedGuest) -> ConvergenceLimits {
    ConvergenceLimits {
        auto_converge: guest.auto_converge,
        ..ConvergenceLimits::new(&MigrationConfiguration::default(), guest.total()).unwrap()
    }
}

fn with(guest: &SimulatedGuest, post_copy: bool, disruption: bool) -> ConvergenceLimits {
    ConvergenceLimits {
        post_copy,
        workload_disruption: disruption,
        ..limits(guest)
    }
}

fn last(story: &Story) -> (u64, Act, &'static str) {
    let (at, action) = story.actions.last().unwrap();
    (*at, action.act, action.reason)
}

#[test]
fn a_quiet_guest_moves_and_nothing_is_done() {
    let story = moves(&quiet(), limits(&quiet()), &[]);
    assert_eq!((story.end, story.actions), (SimulatedEnd::Moved, vec![]));
}

#[test]
fn usual_downtime_is_set_once_when_the_first_pass_has_ended() {
    let sample = |iteration| Sample {
        iteration,
        ..Sample::default()
    };
    for (most, first, usual) in [
        (900, 100, Some(300)),
        (200, 100, Some(200)),
        (100, 100, None),
        (50, 50, None),
    ] {
        let limits = ConvergenceLimits {
            max_downtime: Duration::from_millis(most),
            ..limits(&quiet())
        };
        let mut monitor = Monitor::new(limits);
        let found = [0, 1, 2, 3].map(|iteration| monitor.downtime_after_first_pass(&sample(iteration)));
        let usual = usual.map(Duration::from_millis);
        assert_eq!(
            monitor.initial_downtime(),
            Duration::from_millis(first),
            "at most {most}"
        );
        assert_eq!(found, [None, None, usual, None], "at most {most}");
    }
}

#[test]
fn raised_downtime_is_not_lowered_after_the_first_pass() {
    let second = Sample {
        iteration: 2,
        ..Sample::default()
    };
    for (in_force, expected) in [
        (100, Some(300)),
        (299, Some(300)),
        (300, None),
        (600, None),
        (2000, None),
    ] {
        let mut monitor = Monitor::new(limits(&quiet())).with_downtime(Duration::from_millis(in_force));
        let found = monitor.downtime_after_first_pass(&second);
        assert_eq!(found, expected.map(Duration::from_millis), "{in_force} ms in force");
    }
}

#[test]
fn the_downtime_is_raised_step_by_step_where_that_is_enough() {
    let guest = SimulatedGuest {
        working_set: 80 * MIB,
        ..busy()
    };
    let story = moves(&guest, limits(&guest), &[]);
    let steps = [600, 900].map(|ms| (Act::SetDowntime(Duration::from_millis(ms)), "DowntimeTooShort"));
    assert_eq!((story.end, story.reasons()), (SimulatedEnd::Moved, steps.to_vec()));
    assert!(story.actions[1].0 - story.actions[0].0 >= 10);
}

#[test]
fn endless_migration_is_paused_or_switched_before_the_timeout() {
    for (post_copy, disruption, act, end) in [
        (false, true, Act::Pause, SimulatedEnd::MovedPaused),
        (true, true, Act::StartPostCopy, SimulatedEnd::MovedByPostCopy),
    ] {
        let story = moves(&busy(), with(&busy(), post_copy, disruption), &[]);
        let (at, last, reason) = last(&story);
        assert_eq!((story.end, last, reason), (end, act, "DoesNotConverge"));
        assert!(at < 200, "after {at} of 600 seconds");
    }
}

#[test]
fn sentence_contains_measurements() {
    let paused = moves(&busy(), with(&busy(), false, true), &[]);
    assert_eq!(
        paused.actions.last().unwrap().1.sentence,
        "the guest dirties 210 MiB/s, the bandwidth is 100 MiB/s: the migration does not converge; the guest is paused \
         until it has moved"
    );
    let aborted = moves(
        &busy(),
        ConvergenceLimits {
            progress: None,
            ..limits(&busy())
        },
        &[],
    );
    let sentence = &aborted.actions.last().unwrap().1.sentence;
    assert!(
        sentence.starts_with("the migration has taken 11 min of the allowed 10 min, with "),
        "{sentence}"
    );
    assert!(
        sentence.ends_with("(the guest dirties 210 MiB/s, the bandwidth is 100 MiB/s); the migration is aborted"),
        "{sentence}"
    );
}

#[test]
fn post_copy_alone_is_not_begun_without_leave_to_disturb() {
    let story = moves(&busy(), with(&busy(), true, false), &[]);
    assert_eq!(story.end, SimulatedEnd::Aborted);
    assert!(story.actions.iter().all(|(_, action)| action.act != Act::StartPostCopy));
}

#[test]
fn migration_without_remedies_is_aborted_at_the_limits() {
    let story = moves(&busy(), limits(&busy()), &[]);
    let reports: Vec<_> = story
        .reasons()
        .into_iter()
        .filter(|(act, _)| *act == Act::Report)
        .collect();
    assert_eq!(reports, [(Act::Report, "DoesNotConverge")]);
    assert_eq!(story.end, SimulatedEnd::Aborted);
    let patient = ConvergenceLimits {
        progress: None,
        ..limits(&busy())
    };
    assert_eq!(
        last(&moves(&busy(), patient, &[])),
        (601, Act::Abort, "CompletionTimeExceeded")
    );
    let endless = ConvergenceLimits {
        completion_per_gib: None,
        ..patient
    };
    assert_eq!(moves(&busy(), endless, &[]).end, SimulatedEnd::Open, "0 is no limit");
}

#[test]
fn remedy_refused_by_libvirt_is_followed_by_the_next_remedy() {
    let refused = moves(&busy(), with(&busy(), true, true), &[Act::StartPostCopy]);
    assert_eq!(refused.end, SimulatedEnd::MovedPaused);
    let acts: Vec<Act> = refused.reasons().into_iter().map(|(act, _)| act).collect();
    let times = |act| acts.iter().filter(|own| **own == act).count();
    assert_eq!((times(Act::StartPostCopy), times(Act::Pause)), (1, 1));
    let all = moves(&busy(), with(&busy(), true, true), &[Act::StartPostCopy, Act::Pause]);
    assert_eq!(all.end, SimulatedEnd::Aborted);
}

#[test]
fn throttled_guest_is_not_paused_while_throttling_helps() {
    let guest = SimulatedGuest {
        auto_converge: true,
        dirty: 140 * MIB,
        working_set: 1024 * MIB,
        ..quiet()
    };
    let story = moves(&guest, with(&guest, false, true), &[]);
    assert_eq!(story.end, SimulatedEnd::Moved, "{:?}", story.actions);
    assert_eq!(story.reasons()[0], (Act::Report, "AutoConverge"));
}

#[test]
fn a_connection_that_is_cut_is_no_progress() {
    let guest = SimulatedGuest {
        cut_at: Some(20),
        ..quiet()
    };
    let story = moves(&guest, with(&guest, true, true), &[]);
    assert_eq!(last(&story), (169, Act::Abort, "NoProgress"));
    assert_eq!(story.outlooks.last(), Some(&Outlook::Unknown));
}

/// Minutes of a pass in which the remaining bytes never fall below the end of the previous pass.
#[test]
fn a_long_pass_is_progress_only_of_a_guest_that_converges() {
    for (dirty, expected) in [(90 * MIB, None), (110 * MIB, Some((150, Act::Abort, "NoProgress")))] {
        let mut monitor = Monitor::new(limits(&quiet()));
        let mut aborted = None;
        for second in 0..400 {
            let sample = Sample {
                data_total: 4096 * MIB,
                data_processed: second * 100 * MIB,
                data_remaining: 2000 * MIB,
                memory_remaining: 2000 * MIB,
                dirty_rate: Some(dirty),
                bandwidth: Some(100 * MIB),
                iteration: 4,
                elapsed: Duration::from_secs(second),
                ..Sample::default()
            };
            let actions = monitor.observe(&sample).into_iter();
            let mut aborts = actions.filter(|action| action.act == Act::Abort);
            aborted = aborted.or(aborts.next().map(|action| (second, action.act, action.reason)));
        }
        assert_eq!(aborted, expected);
    }
}

#[test]
fn copied_disks_and_then_copied_memory_count_as_progress() {
    let guest = SimulatedGuest {
        memory: 60 * 1024 * MIB,
        disks: 60 * 1024 * MIB,
        ..quiet()
    };
    let story = moves(&guest, limits(&guest), &[]);
    assert_eq!((story.end, story.actions), (SimulatedEnd::Moved, vec![]));
    assert!(story.took > 1200, "{}", story.took);
}

/// Before memory is sent, only a pause would be possible.
#[test]
fn guest_with_post_copy_is_paused_for_disks_after_twice_time() {
    let guest = |disks| SimulatedGuest {
        memory: 100 * MIB,
        disks: disks * MIB,
        bandwidth: MIB,
        ..quiet()
    };
    let time = |post_copy| ConvergenceLimits {
        completion_per_gib: Some(Duration::from_secs(60)),
        progress: None,
        ..with(&guest(0), post_copy, true)
    };
    let (late, too_late) = ("CompletionTimeExceeded", SimulatedEnd::Aborted);
    for (name, disks, post_copy, expected, end) in [
        (
            "in time",
            30,
            true,
            vec![(61, Act::StartPostCopy)],
            SimulatedEnd::MovedByPostCopy,
        ),
        (
            "late",
            90,
            true,
            vec![(91, Act::StartPostCopy)],
            SimulatedEnd::MovedByPostCopy,
        ),
        (
            "too late",
            130,
            true,
            vec![(121, Act::Pause), (181, Act::Abort)],
            too_late,
        ),
        (
            "no post-copy",
            90,
            false,
            vec![(61, Act::Pause), (121, Act::Abort)],
            too_late,
        ),
    ] {
        let story = moves(&guest(disks), time(post_copy), &[]);
        let taken: Vec<_> = story
            .actions
            .iter()
            .filter(|(_, action)| action.reason == late)
            .collect();
        let acts: Vec<_> = taken.iter().map(|(at, action)| (*at, action.act)).collect();
        assert_eq!((acts, story.end), (expected, end), "{name}");
        if let Some((_, abort)) = taken.iter().find(|(_, action)| action.act == Act::Abort) {
            let allowed = if post_copy {
                "of the allowed 3 min"
            } else {
                "of the allowed 2 min"
            };
            assert!(abort.sentence.contains(allowed), "{}", abort.sentence);
        }
    }
}

#[test]
fn a_pause_doubles_the_time_and_is_not_repeated() {
    let guest = SimulatedGuest {
        cut_at: Some(200),
        ..busy()
    };
    let limits = ConvergenceLimits {
        progress: None,
        ..with(&guest, false, true)
    };
    let mut monitor = Monitor::new(limits);
    let mut sample = Sample {
        data_total: guest.memory,
        data_remaining: guest.memory,
        memory_remaining: guest.memory,
        dirty_rate: Some(guest.dirty),
        bandwidth: Some(guest.bandwidth),
        iteration: 5,
        ..Sample::default()
    };
    let mut acts = Vec::new();
    for second in 0..1300 {
        sample.elapsed = Duration::from_secs(second);
        sample.data_processed = second * guest.bandwidth;
        for action in monitor.observe(&sample) {
            // The guest is resumed externally after a minute.
            acts.push((second, action.act));
        }
        let paused_at = acts.iter().find(|(_, act)| *act == Act::Pause).map(|(at, _)| *at);
        sample.paused = paused_at.is_some_and(|at| (at..at + 60).contains(&second));
    }
    let pauses = acts.iter().filter(|(_, act)| *act == Act::Pause).count();
    let aborted = acts.iter().find(|(_, act)| *act == Act::Abort);
    assert_eq!((pauses, aborted), (1, Some(&(1201, Act::Abort))));
}

#[test]
fn abort_without_effect_is_repeated() {
    let mut monitor = Monitor::new(limits(&busy()));
    let mut requested = Vec::new();
    for second in 0..170 {
        let sample = Sample {
            data_remaining: 1,
            elapsed: Duration::from_secs(second),
            ..Sample::default()
        };
        requested.extend(monitor.observe(&sample).into_iter().map(|action| (second, action.act)));
    }
    let expected = [150, 155, 160, 165].map(|second| (second, Act::Abort));
    assert_eq!(requested, expected);
}

#[test]
fn the_summary_is_short_and_round() {
    let sample = Sample {
        data_total: 1000 * MIB,
        data_remaining: 315 * MIB,
        ..Sample::default()
    };
    for (outlook, expected) in [
        (Outlook::Unknown, "68 %, 310 MiB left"),
        (Outlook::Never, "68 %, 310 MiB left, does not converge"),
        (
            Outlook::Ends(Duration::from_millis(6100)),
            "68 %, 310 MiB left, about 7 s",
        ),
        (Outlook::Ends(Duration::ZERO), "68 %, 310 MiB left, about 1 s"),
        (Outlook::Ends(Duration::from_secs(41)), "68 %, 310 MiB left, about 45 s"),
        (
            Outlook::Ends(Duration::from_secs(61)),
            "68 %, 310 MiB left, about 2 min",
        ),
        (
            Outlook::Ends(Duration::from_secs(8000)),
            "68 %, 310 MiB left, about 3 h",
        ),
    ] {
        assert_eq!(summary(&sample, outlook), expected);
    }
    for (left, expected) in [
        (0, "0 B left"),
        (1023, "1020 B left"),
        (1024, "1.0 KiB left"),
        (1536, "1.5 KiB left"),
        (99 * MIB, "99 MiB left"),
        (u64::MAX, "15 EiB left"),
    ] {
        let sample = Sample {
            data_remaining: left,
            ..Sample::default()
        };
        assert_eq!(summary(&sample, Outlook::Unknown), expected);
    }
}

#[test]
fn progress_is_written_each_five_seconds_or_on_mode_change() {
    let written = |seconds: i64, mode, left| WrittenProgress {
        at: NOW + jiff::SignedDuration::from_secs(seconds),
        mode,
        progress: MigrationProgress {
            data_remaining: left,
            ..MigrationProgress::default()
        },
    };
    let before = written(0, MigrationMode::PreCopy, 9);
    for (new, expected) in [
        (written(4, MigrationMode::PreCopy, 5), false),
        (written(5, MigrationMode::PreCopy, 5), true),
        (written(99, MigrationMode::PreCopy, 9), false),
        (written(0, MigrationMode::Paused, 9), true),
        (written(-1, MigrationMode::PreCopy, 5), true),
    ] {
        assert_eq!(worth_writing(Some(&before), &new), expected, "{new:?}");
        assert!(worth_writing(None, &new));
    }
}

#[test]
fn convergence_limits_follow_the_recorded_configuration() {
    type Recorded = MigrationConfiguration;
    let recorded = Recorded {
        bandwidth_per_migration: Some("64Mi".into()),
        completion_timeout_per_gib: Some(0),
        progress_timeout: Some(7),
        max_downtime_ms: Some(500),
        allow_post_copy: Some(true),
        ..Recorded::default()
    };
    let limits = ConvergenceLimits::new(&recorded, 5).unwrap();
    let expected = ConvergenceLimits {
        completion_per_gib: None,
        progress: Some(Duration::from_secs(7)),
        max_downtime: Duration::from_millis(500),
        auto_converge: false,
        post_copy: true,
        workload_disruption: true,
        total: 5,
        bandwidth: Some(64 * MIB),
    };
    assert_eq!(limits, expected);
    let bad = [
        Recorded {
            bandwidth_per_migration: Some("fast".into()),
            ..Recorded::default()
        },
        Recorded {
            progress_timeout: Some(-1),
            ..Recorded::default()
        },
        Recorded {
            max_downtime_ms: Some(0),
            ..Recorded::default()
        },
    ];
    let messages = bad.map(|recorded| ConvergenceLimits::new(&recorded, 5).unwrap_err().to_string());
    assert_eq!(
        messages,
        [
            "bandwidthPerMigration: `fast` is not allowed; allowed: bytes per second such as 64Mi, or 0 for no limit",
            "progressTimeout: `-1` is not allowed; allowed: whole seconds, or 0 for no limit",
            "maxDowntimeMs: `0` is not allowed; allowed: milliseconds from 1 to 2000000",
        ]
    );
    let of = |total| {
        ConvergenceLimits::new(&Recorded::default(), total)
            .unwrap()
            .completion_time()
    };
    assert_eq!(of(0), Some(Duration::from_secs(150)));
    assert_eq!(of((1 << 30) + 1), Some(Duration::from_secs(300)));
}
