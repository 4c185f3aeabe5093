//! Logs: for people or as JSON, to standard error, with a level that can be changed while running.

use std::{io::IsTerminal, panic, str::FromStr};
use thiserror::Error;
use tracing_subscriber::{EnvFilter, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

/// A format of log lines that there is not.
#[derive(Debug, Error)]
#[error("\"{0}\" is no format of log lines: use human or json")]
pub struct UnknownFormat(String);

/// A filter of log lines that cannot be read.
#[derive(Debug, Error)]
#[error("\"{given}\" is no log level: use error, warn, info, debug, trace, or module=level separated by commas")]
pub struct UnknownLevel {
    given: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Logs could not be started.
#[derive(Debug, Error)]
pub enum LogError {
    /// The level that was asked for cannot be read.
    #[error(transparent)]
    Level(#[from] UnknownLevel),
    /// Something else of this process takes the log lines already.
    #[error("logging was started twice")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Changes the level of the log while the process runs.
#[derive(Clone, Debug)]
pub struct LogHandle(reload::Handle<EnvFilter, Registry>);

impl LogHandle {
    /// Lets through what `level` says from now on: `debug`, or `info,drydock_runtime=trace`.
    pub fn set(&self, level: &str) -> Result<(), UnknownLevel> {
        let filter = filter(level)?;
        // Fails only once the subscriber is gone: at the end of the process.
        let _ = self.0.reload(filter);
        Ok(())
    }

    /// What is let through now.
    pub fn level(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }

    /// A handle with a filter of its own that no log line passes: for tests of what takes a handle. It works as long
    /// as the second value lives.
    pub fn detached(level: &str) -> Result<(Self, impl Sized + use<>), UnknownLevel> {
        let (layer, handle) = reload::Layer::new(filter(level)?);
        Ok((Self(handle), layer))
    }
}

/// Starts logging and lets panics be logged too.
pub(crate) fn start(format: LogFormat, level: &str) -> Result<LogHandle, LogError> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    // Colours are for a terminal; in a file, or where `kubectl logs` reads, they are rubbish.
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Human => registry.with(lines).try_init(),
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true).with_current_span(false))
            .try_init(),
    }
    .map_err(LogError::Twice)?;
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic: {}", panic_text(panic.payload()));
    }));
    Ok(LogHandle(handle))
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// The filter for a level that a person gave.
fn filter(level: &str) -> Result<EnvFilter, UnknownLevel> {
    let unknown = |source| UnknownLevel {
        given: level.to_owned(),
        source,
    };
    let mut filter = EnvFilter::builder().parse(level).map_err(unknown)?;
    // These two log each failed request and each refused watch, again at every retry. What they say is counted and
    // logged once, on the transition, by this crate. Who looks for more asks for a finer level.
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
    use super::{LogFormat, LogHandle};

    #[test]
    fn a_format_is_human_or_json() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert_eq!("human".parse::<LogFormat>().unwrap(), LogFormat::Human);
        let refused = "xml".parse::<LogFormat>().unwrap_err().to_string();
        assert_eq!(refused, "\"xml\" is no format of log lines: use human or json");
    }

    #[test]
    fn the_level_can_be_changed_and_a_bad_one_is_refused() {
        let (logs, _layer) = LogHandle::detached("info").unwrap();
        assert!(logs.level().contains("info"));
        logs.set("debug").unwrap();
        assert_eq!(logs.level(), "debug");
        let refused = logs.set("loud=very").unwrap_err().to_string();
        assert!(
            refused.starts_with("\"loud=very\" is no log level: use error, warn"),
            "{refused}"
        );
        assert_eq!(logs.level(), "debug");
    }

    #[test]
    fn noise_of_retries_is_kept_out_unless_asked_for() {
        let (logs, _layer) = LogHandle::detached("info").unwrap();
        assert!(logs.level().contains("kube_client::client::builder=off"));
        logs.set("info,kube_client=info").unwrap();
        assert!(!logs.level().contains("off"));
    }
}
