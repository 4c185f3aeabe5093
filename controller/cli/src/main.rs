//! The kubectl plugin `kubectl drydock`.

use std::{env, io::Write, process::ExitCode};

use drydock_cli::{Terminal, run};

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let exit = run(env::args_os(), &Terminal::present(), &mut out);
    // Whoever read the output may have gone.
    let _ = out.flush();
    ExitCode::from(exit.code())
}
