//! The migration calls, whose arguments and results are lists of typed parameters.

use std::{
    ffi::{CStr, CString, c_int, c_ulong, c_ulonglong},
    ptr,
};

use drydock_api::facts::VirtType;
use virt_sys as sys;

use super::{super::c_values::read_parameters, LibvirtConnection, succeeded};
use crate::{
    domain::{
        CpuComparison, JobInfo, JobType, Migration,
        domain_migration::{BANDWIDTH_AT_MOST, MigrationParameter},
        job::WhichJob,
    },
    libvirt::{LibvirtError, c_string},
};

/// Typed parameters that are passed to libvirt's client.
struct Parameters {
    list: sys::virTypedParameterPtr,
    count: c_int,
    room: c_int,
}

impl Parameters {
    fn new() -> Self {
        Self {
            list: ptr::null_mut(),
            count: 0,
            room: 0,
        }
    }

    fn add(
        &mut self,
        call: &'static str,
        name: &'static CStr,
        value: MigrationParameter<'_>,
    ) -> Result<(), LibvirtError> {
        let name = name.as_ptr();
        // SAFETY: libvirt has left the three fields consistent; strings end with a zero byte and are copied.
        let added = unsafe {
            match value {
                MigrationParameter::Number(number) => sys::virTypedParamsAddULLong(
                    &raw mut self.list,
                    &raw mut self.count,
                    &raw mut self.room,
                    name,
                    number,
                ),
                MigrationParameter::Text(text) => {
                    let text = c_string(call, text)?;
                    sys::virTypedParamsAddString(
                        &raw mut self.list,
                        &raw mut self.count,
                        &raw mut self.room,
                        name,
                        text.as_ptr(),
                    )
                }
            }
        };
        succeeded(call, added).map(drop)
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        // SAFETY: the pointer is null or a list from libvirt that this value owns and frees once.
        unsafe { sys::virTypedParamsFree(self.list, self.count) };
    }
}

pub(super) fn migrate(
    connection: &LibvirtConnection,
    migration: &Migration,
) -> Result<Result<(), LibvirtError>, LibvirtError> {
    const CALL: &str = "migrating the guest";
    let destination = c_string(CALL, &migration.destination)?;
    let mut parameters = Parameters::new();
    for (name, value) in migration.parameters() {
        parameters.add(CALL, name, value)?;
    }
    let domain = connection.found(CALL)?;
    // SAFETY: the domain is one of this open connection; the URI ends with a zero byte, the list has `count`
    // parameters, and both outlive the call.
    let moved = unsafe {
        sys::virDomainMigrateToURI3(
            domain.0,
            destination.as_ptr(),
            parameters.list,
            parameters.count.cast_unsigned(),
            migration.flags(),
        )
    };
    match succeeded(CALL, moved) {
        Ok(_) => Ok(Ok(())),
        // libvirtd also forwards errors of its own connection to the target, so only the state of this connection shows
        // which connection is broken.
        Err(error) if error.is_broken_connection() && !is_alive(connection) => Err(error),
        Err(error) => Ok(Err(error)),
    }
}

/// Returns whether the connection is still open on both sides, as far as libvirt's client knows.
fn is_alive(connection: &LibvirtConnection) -> bool {
    // SAFETY: the connection has not been freed.
    unsafe { sys::virConnectIsAlive(connection.raw) == 1 }
}

pub(super) fn job(connection: &LibvirtConnection, which: WhichJob) -> Result<Option<JobInfo>, LibvirtError> {
    const CALL: &str = "reading the domain's job";
    let flags = match which {
        WhichJob::Current => 0,
        WhichJob::Completed => sys::VIR_DOMAIN_JOB_STATS_COMPLETED | sys::VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED,
    };
    let domain = connection.found(CALL)?;
    let mut job_type = 0;
    let mut parameters = Parameters::new();
    // SAFETY: the domain is one of this open connection, and all output variables outlive the call.
    let fetched = succeeded(CALL, unsafe {
        sys::virDomainGetJobStats(
            domain.0,
            &raw mut job_type,
            &raw mut parameters.list,
            &raw mut parameters.count,
            flags,
        )
    });
    match fetched {
        Ok(_) => {}
        // "migration statistics are available only on the source host"
        Err(error) if error.code == sys::VIR_ERR_OPERATION_UNSUPPORTED => return Ok(Some(JobInfo::incoming())),
        // "domain is not running": such a domain has no job.
        Err(error) if error.code == sys::VIR_ERR_OPERATION_INVALID => return Ok(None),
        Err(error) => return Err(error),
    }
    // SAFETY: libvirt returned `parameters.count` parameters.
    let parameters_read = unsafe { read_parameters(parameters.list, parameters.count) };
    Ok(JobInfo::from_parameters(JobType::from_raw(job_type), &parameters_read))
}

pub(super) fn max_downtime(connection: &LibvirtConnection) -> Result<u64, LibvirtError> {
    const CALL: &str = "reading the limit of a migration's downtime";
    let domain = connection.found(CALL)?;
    let mut milliseconds: c_ulonglong = 0;
    // SAFETY: the domain is one of this open connection, and the output variable outlives the call.
    succeeded(CALL, unsafe {
        sys::virDomainMigrateGetMaxDowntime(domain.0, &raw mut milliseconds, 0)
    })
    .map(|_| milliseconds)
}

pub(super) fn set_max_downtime(connection: &LibvirtConnection, milliseconds: u64) -> Result<(), LibvirtError> {
    const CALL: &str = "limiting a migration's downtime";
    let domain = connection.found(CALL)?;
    // SAFETY: the domain is one of this open connection.
    succeeded(CALL, unsafe {
        sys::virDomainMigrateSetMaxDowntime(domain.0, milliseconds, 0)
    })
    .map(drop)
}

pub(super) fn set_bandwidth(connection: &LibvirtConnection, mebibytes: u64) -> Result<(), LibvirtError> {
    const CALL: &str = "limiting a migration's bandwidth";
    // libvirt accepts a speed of 0, with which a migration would make no progress.
    let mebibytes = match mebibytes {
        0 => BANDWIDTH_AT_MOST,
        limit => limit.min(BANDWIDTH_AT_MOST),
    };
    let domain = connection.found(CALL)?;
    let mebibytes = c_ulong::try_from(mebibytes).unwrap_or(c_ulong::MAX);
    // SAFETY: the domain is one of this open connection.
    succeeded(CALL, unsafe {
        sys::virDomainMigrateSetMaxSpeed(domain.0, mebibytes, 0)
    })
    .map(drop)
}

pub(super) fn start_post_copy(connection: &LibvirtConnection) -> Result<(), LibvirtError> {
    const CALL: &str = "switching to post-copy";
    let domain = connection.found(CALL)?;
    // SAFETY: the domain is one of this open connection.
    succeeded(CALL, unsafe { sys::virDomainMigrateStartPostCopy(domain.0, 0) }).map(drop)
}

pub(super) fn compare_cpu(
    connection: &LibvirtConnection,
    cpu: &str,
    virt_type: VirtType,
) -> Result<CpuComparison, LibvirtError> {
    const CALL: &str = "comparing a guest's CPU";
    let cpu = c_string(CALL, cpu)?;
    let virt_type: CString = c_string(CALL, virt_type.as_str())?;
    // Without the flag, libvirt would return only that the CPU is incompatible, without the reason.
    let flags = sys::VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE;
    // SAFETY: the connection is open, both strings end with a zero byte and outlive the call; null selects the host's
    // architecture, its emulator, and the emulator's default machine.
    let result = unsafe {
        sys::virConnectCompareHypervisorCPU(
            connection.raw,
            ptr::null(),
            ptr::null(),
            ptr::null(),
            virt_type.as_ptr(),
            cpu.as_ptr(),
            flags,
        )
    };
    match result {
        sys::VIR_CPU_COMPARE_IDENTICAL | sys::VIR_CPU_COMPARE_SUPERSET => Ok(CpuComparison::Fits),
        sys::VIR_CPU_COMPARE_INCOMPATIBLE => Ok(CpuComparison::Incompatible {
            message: "the guest's CPU is incompatible with the host's CPU".into(),
            features: Vec::new(),
        }),
        _ => CpuComparison::from_error(LibvirtError::last(CALL)),
    }
}
