//! `kubectl drydock`: plans of drains, maintenance of nodes, and checks of the cluster.
//!
//! ```text
//!  arguments ─▶ kubeconfig ─▶ lists of objects ─▶ drydock_view ─▶ text or JSON on standard output, and an exit code
//! ```
//!
//! Data is printed on standard output, errors and hints on standard error. Only `drain`, `maintenance` and `console`
//! write to the cluster.
//!
//! - `arguments`, `failure`, `output`, `read`: parts that all commands share.
//! - `plan`, `explain_command`, `top`, `version`: commands that read once and print.
//! - `follow`, `screen`: continuous views, as lines or redrawn on a terminal.
//! - `maintenance_command`: NodeMaintenances by the names of their nodes.
//! - `completion`: candidates for shells and for kubectl.

#![forbid(unsafe_code)]

mod arguments;
mod check;
mod cluster;
mod completion;
mod connection;
mod console;
mod explain_command;
mod failure;
mod follow;
mod maintenance_command;
mod output;
mod plan;
mod read;
mod screen;
mod top;
mod version;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use drydock_runtime::clock;

pub use failure::Exit;
pub use screen::LiveTerminal;

use arguments::{ConsoleServer, PluginArgs, PluginCommand};
use failure::CommandError;
use follow::FollowedNodes;
use screen::Screen;

/// Minimum width in columns for which output is formatted, even if the terminal is narrower.
const NARROWEST: usize = 40;

/// Destination of the output.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Width in columns.
    pub width: usize,
}

impl Terminal {
    /// Returns the terminal of this process. The width is 80 columns if there is no terminal.
    pub fn present() -> Self {
        let size = terminal_size::terminal_size();
        Self {
            width: size.map_or(drydock_view::text::WIDTH, |(width, _)| {
                usize::from(width.0).max(NARROWEST)
            }),
        }
    }
}

/// Executes a command line whose first word is the program. Continuous views are printed as lines.
pub fn run<T: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = T>,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> Exit {
    carry_out(words, terminal, None, out)
}

/// Executes a command line whose output goes to a terminal, on which continuous views are redrawn.
pub fn run_live<T: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = T>,
    live: LiveTerminal,
    out: &mut dyn Write,
) -> Exit {
    let (width, _) = live.size();
    let terminal = Terminal {
        width: width.max(NARROWEST),
    };
    carry_out(words, &terminal, Some(live), out)
}

fn carry_out<T: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = T>,
    terminal: &Terminal,
    live: Option<LiveTerminal>,
    out: &mut dyn Write,
) -> Exit {
    let arguments = match PluginArgs::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are not errors, and are printed on standard output.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            if exit == Exit::Done {
                let _ = write!(out, "{error}");
            } else {
                eprint!("{error}");
            }
            return exit;
        }
    };
    if let PluginCommand::ConsoleServer(options) = arguments.command {
        return serve_console(*options);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(execute(&arguments, terminal, live, out)),
        Err(error) => Err(CommandError::Output(error)),
    };
    match result {
        Ok(exit) => exit,
        Err(failure) => {
            failure.report();
            failure.exit()
        }
    }
}

/// Serves the console in a cluster, with its own threads and logs.
fn serve_console(options: ConsoleServer) -> Exit {
    match options.served() {
        Ok(options) => match console::serve_in_cluster(options) {
            ExitCode::SUCCESS => Exit::Done,
            _ => Exit::Error,
        },
        Err(message) => {
            eprintln!("error: {message}");
            Exit::Usage
        }
    }
}

async fn execute(
    arguments: &PluginArgs,
    terminal: &Terminal,
    live: Option<LiveTerminal>,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let watches = match &arguments.command {
        PluginCommand::Console(_) | PluginCommand::Drain { .. } | PluginCommand::Watch { .. } => true,
        PluginCommand::Top(options) => options.watch,
        _ => false,
    };
    let connect = || arguments.connection.client(watches);
    let screen = live.map(|live| Screen::new(live, !arguments.no_color));
    match &arguments.command {
        PluginCommand::Plan(question) => plan::print(&connect().await?, question, clock::now(), terminal, out).await,
        PluginCommand::Drain { start, follow: options } => {
            // Standard output has the course of the drain only, so the message about its start goes to standard error.
            let client = connect().await?;
            let (started, exit) = maintenance_command::start(&client, start, &mut io::stderr()).await;
            if started.is_empty() {
                return Ok(exit);
            }
            let nodes = FollowedNodes::Named(started);
            Ok(exit.worse(follow::follow(&client, nodes, options, screen, out).await?))
        }
        PluginCommand::Watch {
            vm: Some(vm),
            namespace,
            follow: options,
            ..
        } => {
            let client = connect().await?;
            let (namespace, name) = explain_command::instance_name(&client, vm, namespace.as_deref());
            follow::follow_machine(&client, &namespace, &name, options, screen, out).await
        }
        PluginCommand::Watch {
            nodes, follow: options, ..
        } => {
            let nodes = if nodes.is_empty() {
                FollowedNodes::InMaintenance
            } else {
                FollowedNodes::Named(nodes.clone())
            };
            follow::follow(&connect().await?, nodes, options, screen, out).await
        }
        PluginCommand::Explain(question) => {
            explain_command::print(&connect().await?, question, clock::now(), terminal, out).await
        }
        PluginCommand::Top(options) => top::print(&connect().await?, options, screen, out).await,
        PluginCommand::Version { output } => version::print(&connect().await?, *output, terminal, out).await,
        PluginCommand::Completion(command) => completion::print(command, out),
        PluginCommand::Complete { words } => completion::complete(words, out).await,
        PluginCommand::Maintenance(command) => {
            maintenance_command::execute(&connect().await?, command, clock::now(), terminal, out).await
        }
        PluginCommand::Console(options) => {
            let cluster = arguments.connection.cluster(&options.careful)?;
            console::serve(&connect().await?, options.served(), cluster, out).await
        }
        // `carry_out` has already served the console.
        PluginCommand::ConsoleServer(_) => Ok(Exit::Done),
        PluginCommand::Check { output } => check::print(&connect().await?, *output, clock::now(), terminal, out).await,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener};

    use super::*;

    #[test]
    fn unreachable_api_server_has_a_distinct_exit_code() {
        let kubeconfig = std::env::temp_dir().join(format!("drydock-cli-{}.yaml", std::process::id()));
        // A port on which nothing listens.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: a, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\nusers: [{{name: a, user: {{}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
        );
        fs::write(&kubeconfig, text).unwrap();
        let path = kubeconfig.display().to_string();
        for command in [&["plan", "a"][..], &["check"], &["check", "-o", "json"]] {
            let mut out = Vec::new();
            let words = [&["kubectl-drydock", "--kubeconfig", &path], command].concat();
            let exit = run(words, &Terminal { width: 80 }, &mut out);
            assert_eq!((exit, out), (Exit::NotReached, Vec::new()), "{command:?}");
        }
        fs::remove_file(&kubeconfig).unwrap();
    }

    #[test]
    fn help_and_version_are_printed_and_mistakes_are_not() {
        for (words, expected, printed) in [
            (&["kubectl-drydock", "--help"][..], Exit::Done, true),
            (&["kubectl-drydock", "--version"], Exit::Done, true),
            (&["kubectl-drydock"], Exit::Usage, false),
            (&["kubectl-drydock", "plan", "node/"], Exit::Usage, false),
        ] {
            let mut out = Vec::new();
            let exit = run(words.iter().copied(), &Terminal { width: 80 }, &mut out);
            assert_eq!((exit, !out.is_empty()), (expected, printed), "{words:?}");
        }
    }
}
