//! `mainstay`: a node agent that runs pods and answers for them.
//!
//! `mainstay kubelet …` (or being called as `kubelet`) takes upstream's flags; `mainstay run` is the friendly start on one
//! machine; the other verbs look at a running node. Exit codes: 0 done, 1 failed, 64 bad configuration or usage.

#![forbid(unsafe_code)]

mod addresses;
mod app;
mod check;
mod cli;
mod cluster;
mod doctor;
mod local_api;
mod logging;
mod node;
mod node_cgroups;
mod node_object;
mod pinning;
mod place;
mod run;
mod secure;
mod stats;

use std::process::ExitCode;

/// Notes where memory goes, once the agent asks for it; see the `profile` crate for the cost.
#[global_allocator]
static HEAP: mainstay_profile::SampledHeap = mainstay_profile::SampledHeap;

fn main() -> ExitCode {
    let args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    cli::main(args)
}
