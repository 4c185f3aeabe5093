//! Tests with recorded jobs, and with jobs with implausible data.

use std::time::Duration;

use proptest::prelude::{any, prop, proptest};

use super::{JobAmount, JobInfo, JobOperation, JobType, Parameter, ParameterValue};

/// Parses recorded parameters: a name and a value per line. All recorded values are numbers.
fn parameters(text: &str) -> Vec<Parameter> {
    text.lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            Parameter {
                name: name.into(),
                value: ParameterValue::Number(value.parse().unwrap()),
            }
        })
        .collect()
}

macro_rules! recorded {
    ($name:literal, $job_type:ident) => {
        JobInfo::from_parameters(
            JobType::$job_type,
            &parameters(include_str!(concat!(
                "../../../testdata/trixie/migration/",
                $name,
                ".txt"
            ))),
        )
        .unwrap()
    };
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_migration_that_does_not_converge() {
    let job = recorded!("outgoing", Unbounded);
    assert!(job.is_active());
    assert_eq!(
        job,
        JobInfo {
            job_type: JobType::Unbounded,
            operation: JobOperation::OutgoingMigration,
            elapsed: Some(4524 * MILLISECOND),
            remaining: None,
            downtime: Some(399 * MILLISECOND),
            setup: Some(Duration::ZERO),
            data: JobAmount {
                total: 68_550_656,
                processed: 4_371_738,
                remaining: 393_216,
            },
            memory: JobAmount {
                total: 67_502_080,
                processed: 3_323_162,
                remaining: 393_216,
            },
            disk: JobAmount {
                total: 1 << 20,
                processed: 1 << 20,
                remaining: 0,
            },
            memory_rate: Some(1_313_460),
            disk_rate: None,
            // The rate is 319 pages of 4 KiB.
            dirty_rate: Some(319 * 4096),
            iteration: Some(16),
            throttle: Some(20),
            post_copy_requests: Some(0),
            success: None,
            error: None,
        }
    );
    let begun = recorded!("outgoing-begun", Unbounded);
    assert_eq!((begun.iteration, begun.throttle), (Some(1), None));
    assert!(begun.memory.remaining > job.memory.remaining);
}

#[test]
fn a_migration_that_has_ended_at_both_sides() {
    let source = recorded!("outgoing-completed", Completed);
    let target = recorded!("incoming-completed", Completed);
    assert_eq!(source.operation, JobOperation::OutgoingMigration);
    assert_eq!(target.operation, JobOperation::IncomingMigration);
    for job in [&source, &target] {
        assert!(!job.is_active());
        assert_eq!(job.downtime, Some(38 * MILLISECOND));
        assert_eq!((job.data.remaining, job.iteration), (0, Some(19)));
    }
    // The target's statistics do not include disks.
    assert_eq!((source.disk.total, target.disk.total), (1 << 20, 0));
    assert_eq!(
        recorded!("post-copy-completed", Completed).downtime,
        Some(5 * MILLISECOND)
    );
}

#[test]
fn job_of_type_none_is_absent_despite_parameters() {
    let parameters_read = parameters("operation 5\ntime_elapsed 7");
    assert_eq!(JobInfo::from_parameters(JobType::None, &parameters_read), None);
}

#[test]
fn unreported_values_are_unknown() {
    let job = JobInfo::from_parameters(JobType::Unbounded, &[]).unwrap();
    assert_eq!(
        (job.operation, job.elapsed, job.dirty_rate),
        (JobOperation::Unknown(0), None, None)
    );
    // A rate without the page size is ignored, and a negative time is ignored.
    let parameters_read = parameters("memory_dirty_rate 7\ntime_elapsed -1\noperation 99");
    let job = JobInfo::from_parameters(JobType::from_raw(77), &parameters_read).unwrap();
    assert_eq!(
        (job.job_type, job.operation, job.elapsed, job.dirty_rate),
        (JobType::Unknown(77), JobOperation::Unknown(99), None, None)
    );
    assert!(!job.is_active());
}

#[test]
fn failed_job_has_an_error_message() {
    let mut parameters_read = parameters("operation 5\nsuccess 0");
    parameters_read.push(Parameter {
        name: "errmsg".into(),
        value: ParameterValue::Text("no space left".into()),
    });
    let job = JobInfo::from_parameters(JobType::Failed, &parameters_read).unwrap();
    assert_eq!(
        (job.success, job.error.as_deref()),
        (Some(false), Some("no space left"))
    );
}

proptest! {
    #[test]
    fn no_number_is_too_large(
        numbers in prop::collection::vec(any::<i128>(), 22),
        job_type in any::<i32>(),
    ) {
        let mut parameters_read = parameters(include_str!("../../../testdata/trixie/migration/outgoing.txt"));
        for (parameter, number) in parameters_read.iter_mut().zip(numbers) {
            parameter.value = ParameterValue::Number(number);
        }
        let job = JobInfo::from_parameters(JobType::from_raw(job_type), &parameters_read);
        assert_eq!(job.is_none(), job_type == 0);
    }
}
