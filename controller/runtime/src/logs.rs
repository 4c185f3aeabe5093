//! Logs to standard error, human-readable or as JSON, with a level that can be changed at run time.

use std::{io::IsTerminal, panic};
use thiserror::Error;
use tracing_subscriber::{EnvFilter, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt};

/// The format of log lines.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
    Text,
    /// One JSON object per line.
    Json,
}

/// Options of a process's log.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Log filter, for example `info` or `info,kube=debug`. Can be changed at runtime.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "DRYDOCK_LOG_LEVEL")]
    pub log_level: String,
    /// Format of log lines: `text` or `json`.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        env = "DRYDOCK_LOG_FORMAT",
        hide_possible_values = true
    )]
    pub log_format: LogFormat,
}

/// The log filter cannot be parsed.
#[derive(Debug, Error)]
#[error("\"{given}\" is not a log level: use error, warn, info, debug, trace, or module=level separated by commas")]
pub struct UnknownLevel {
    given: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Logging could not be started.
#[derive(Debug, Error)]
pub enum LogError {
    /// The requested level cannot be parsed.
    #[error(transparent)]
    Level(#[from] UnknownLevel),
    /// A log subscriber is already installed in this process.
    #[error("logging was started twice")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Changes the log level at run time.
#[derive(Clone, Debug)]
pub struct LogHandle(reload::Handle<EnvFilter, Registry>);

impl LogHandle {
    /// Sets the log filter to `level`: `debug`, or `info,drydock_runtime=trace`.
    pub fn set(&self, level: &str) -> Result<(), UnknownLevel> {
        let filter = filter(level)?;
        // Fails only if the subscriber has been dropped: at the end of the process.
        let _ = self.0.reload(filter);
        Ok(())
    }

    /// Returns the current log filter.
    pub fn level(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Returns a handle whose filter applies to no log line, for tests of code that needs a handle.
    ///
    /// The handle works until the second value is dropped.
    #[cfg(test)]
    pub fn detached(level: &str) -> Result<(Self, impl Sized + use<>), UnknownLevel> {
        let (layer, handle) = reload::Layer::new(filter(level)?);
        Ok((Self(handle), layer))
    }
}

/// Starts logging, including panics.
pub(crate) fn start(options: &LogArgs) -> Result<LogHandle, LogError> {
    let (filter, handle) = reload::Layer::new(filter(&options.log_level)?);
    // Colours are only for terminals; escape codes are noise in files and in `kubectl logs`.
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    let registry = tracing_subscriber::registry().with(filter);
    match options.log_format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true).with_span_list(false))
            .try_init(),
    }
    .map_err(LogError::Twice)?;
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic: {}", panic_text(panic.payload()));
    }));
    Ok(LogHandle(handle))
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// Parses a log filter that a user has set.
fn filter(level: &str) -> Result<EnvFilter, UnknownLevel> {
    let unknown = |source| UnknownLevel {
        given: level.to_owned(),
        source,
    };
    let mut filter = EnvFilter::builder().parse(level).map_err(unknown)?;
    // These targets log each failed request and each rejected watch on every retry. This crate counts them and logs
    // one line per state change. For more, set a finer level.
    if !level.contains("debug") && !level.contains("trace") && !level.contains("kube") {
        for quiet in [
            "kube_client=error",
            "kube_client::client::builder=off",
            "kube_runtime=error",
        ] {
            filter = filter.add_directive(quiet.parse().map_err(unknown)?);
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::{LogFormat, LogHandle};

    #[test]
    fn a_format_is_text_or_json() {
        assert!(matches!(LogFormat::from_str("json", false), Ok(LogFormat::Json)));
        assert!(matches!(LogFormat::from_str("text", false), Ok(LogFormat::Text)));
        assert!(LogFormat::from_str("xml", false).is_err());
    }

    #[test]
    fn log_level_can_be_changed_and_invalid_level_is_refused() {
        let (logs, _layer) = LogHandle::detached("info").unwrap();
        assert!(logs.level().contains("info"));
        logs.set("debug").unwrap();
        assert_eq!(logs.level(), "debug");
        let refused = logs.set("loud=very").unwrap_err().to_string();
        assert!(
            refused.starts_with("\"loud=very\" is not a log level: use error, warn"),
            "{refused}"
        );
        assert_eq!(logs.level(), "debug");
    }

    #[test]
    fn retry_noise_is_filtered_by_default() {
        let (logs, _layer) = LogHandle::detached("info").unwrap();
        assert!(logs.level().contains("kube_client::client::builder=off"));
        logs.set("info,kube_client=info").unwrap();
        assert!(!logs.level().contains("off"));
    }
}
