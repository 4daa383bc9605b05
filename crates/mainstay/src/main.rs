//! `mainstay`: a node agent that runs pods and answers for them.
//!
//! `mainstay kubelet …` (or being called as `kubelet`) takes upstream's flags; `mainstay run` is the friendly start on one
//! machine; the other verbs look at a running node. Exit codes: 0 done, 1 failed, 64 bad configuration or usage.

#![forbid(unsafe_code)]

mod app;
mod check;
mod cli;
mod doctor;
mod logging;
mod node;
mod run;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    cli::main(args)
}
