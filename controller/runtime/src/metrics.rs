//! The registry of metrics, with the metrics of every process.
//!
//! Structs of metrics are created by `register(&mut Registry) -> Self`; there are no globals. Names start with
//! `drydock_`, except for metrics that dashboards expect under a standard name: those of the process, of work queues
//! and of the leader.

use crate::{Component, lease::Leadership};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};
use std::{
    fmt, fs,
    sync::{Arc, OnceLock},
};

/// The value of a label with a small set of known values.
pub(crate) type Label = &'static str;

/// The kernel reports CPU time to user space in hundredths of a second on all current Linux platforms.
const TICKS_PER_SECOND: f64 = 100.0;

/// Creates a registry with the build information and the resource usage of this process.
pub fn registry(Component { name, version }: Component) -> Registry {
    let mut registry = Registry::default();
    let build = Info::new([("component", name), ("version", version)]);
    registry.register("drydock_build", "Name and version of the component", build);
    registry.register_collector(Box::new(ProcessUse));
    registry
}

/// Metrics that are registered before their source exists. They are exported at each scrape once the source is set.
#[derive(Clone)]
pub struct Deferred(Arc<OnceLock<Source>>);

type Source = Box<dyn Fn(DescriptorEncoder<'_>) -> fmt::Result + Send + Sync>;

impl Deferred {
    /// Registers the metrics without a source.
    pub fn register(registry: &mut Registry) -> Self {
        let collector = Self(Arc::default());
        registry.register_collector(Box::new(collector.clone()));
        collector
    }

    /// Sets the source. Only the first call has an effect.
    pub fn set(&self, source: impl Fn(DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(source));
    }

    /// Sets a source that exports only while this process leads. Every replica knows the values, but sums over replicas
    /// have to be correct.
    pub fn set_while_leading(
        &self,
        leadership: Leadership,
        source: impl Fn(DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
    ) {
        self.set(move |encoder| leadership.term().map_or(Ok(()), |_| source(encoder)));
    }
}

impl Collector for Deferred {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.get().map_or(Ok(()), |source| source(encoder))
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

/// The resource usage of this process, read from /proc on each scrape.
#[derive(Debug)]
struct ProcessUse;

/// The type of a metric.
enum ProcessMetricType {
    Gauge,
    Counter,
}

impl Collector for ProcessUse {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        // Reading the directory opens one more descriptor.
        let open = fs::read_dir("/proc/self/fd")
            .ok()
            .map(|fds| fds.count().saturating_sub(1));
        #[expect(
            clippy::cast_precision_loss,
            reason = "the number of open files is small enough for a double"
        )]
        let values = [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                ProcessMetricType::Gauge,
                memory(&status, "VmRSS:"),
            ),
            (
                "process_anonymous_memory_bytes",
                "Resident memory that is not a mapped file",
                ProcessMetricType::Gauge,
                memory(&status, "RssAnon:"),
            ),
            (
                "process_threads",
                "Threads",
                ProcessMetricType::Gauge,
                number(&status, "Threads:"),
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                ProcessMetricType::Gauge,
                open.map(|open| open as f64),
            ),
            (
                "process_cpu_seconds",
                "CPU time, user and system",
                ProcessMetricType::Counter,
                cpu_seconds(&stat),
            ),
            (
                "process_start_time_seconds",
                "Start of the process, seconds since 1970",
                ProcessMetricType::Gauge,
                start_time(&stat, &machine),
            ),
        ];
        for (name, help, kind, value) in values {
            // Unreadable values are omitted; a zero would be wrong.
            let Some(value) = value else { continue };
            match kind {
                ProcessMetricType::Gauge => {
                    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                    ConstGauge::new(value).encode(metric)?;
                }
                ProcessMetricType::Counter => {
                    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                    ConstCounter::new(value).encode(metric)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns a number from /proc/self/status.
fn number(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns an amount of memory from /proc/self/status in bytes; the file has KiB.
fn memory(status: &str, field: &str) -> Option<f64> {
    number(status, field).map(|kib| kib * 1024.0)
}

/// Returns the n-th field of /proc/self/stat, as numbered in proc(5). The second field, the command, may contain
/// blanks and brackets.
fn stat_field(stat: &str, field: usize) -> Option<f64> {
    let after_command = &stat[stat.rfind(')')? + 1..];
    after_command.split_whitespace().nth(field - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_SECOND)
}

fn start_time(stat: &str, machine: &str) -> Option<f64> {
    Some(number(machine, "btime")? + stat_field(stat, 22)? / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::{cpu_seconds, memory, registry, start_time};
    use crate::Component;
    use prometheus_client::encoding::text::encode;

    const STAT: &str = "4213 (a (odd) name) S 1 4213 4213 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 4 0 123400 9 8 7";

    #[test]
    fn proc_files_are_read_in_the_kernel_format() {
        let status = "Name:\tagent\nVmRSS:\t   20480 kB\nRssAnon:\t    6144 kB\n";
        assert_eq!(memory(status, "RssAnon:"), Some(6.0 * 1024.0 * 1024.0));
        assert_eq!(memory(status, "VmSwap:"), None);
        assert_eq!(cpu_seconds(STAT), Some(3.0));
        assert_eq!(start_time(STAT, "cpu 1 2\nbtime 1000\n"), Some(2234.0));
        assert_eq!(cpu_seconds("4213 (cut"), None);
    }

    #[test]
    fn process_metrics_have_version_and_usage() {
        let mut text = String::new();
        let component = Component {
            name: "drydock-agent",
            version: "1.2.3",
        };
        encode(&mut text, &registry(component)).unwrap();
        assert!(
            text.contains("drydock_build_info{component=\"drydock-agent\",version=\"1.2.3\"} 1"),
            "{text}"
        );
        for name in [
            "process_resident_memory_bytes ",
            "process_anonymous_memory_bytes ",
            "process_threads ",
            "process_open_fds ",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
        ] {
            assert!(
                text.lines().any(|line| line.starts_with(name)),
                "{name} is missing in {text}"
            );
        }
    }
}
