//! The kubectl plugin `kubectl drydock`.

use std::{env, io::Write, process::ExitCode};

use drydock_cli::{LiveTerminal, Terminal, run, run_live};

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let exit = match LiveTerminal::stdout() {
        Some(live) => run_live(env::args_os(), live, &mut out),
        None => run(env::args_os(), &Terminal::present(), &mut out),
    };
    // The reader of the output may have closed it.
    let _ = out.flush();
    ExitCode::from(exit.code())
}
