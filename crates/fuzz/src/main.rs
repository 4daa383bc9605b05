//! The command behind `cargo xtask fuzz`.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line program reports on standard output")]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use mainstay_fuzz::{Campaign, Finding, TARGETS, Target, Until, target};

fn usage() -> String {
    let mut text = "\
cargo xtask fuzz [TARGET...] [--seconds N] [--seed N] [--replay FILE]

  --seconds N     how long each target is tried (default 30)
  --seed N        where to begin (default: the time)
  --replay FILE   only this input; needs one target

"
    .to_owned();
    for target in TARGETS {
        text.push_str(&format!("  {:<12}  {}\n", target.name, target.reads));
    }
    text
}

struct Wish {
    targets: Vec<&'static Target>,
    until: Duration,
    seed: u64,
    replay: Option<PathBuf>,
}

fn main() -> ExitCode {
    match wish().and_then(|wish| run(&wish)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn wish() -> Result<Wish> {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut wish = Wish {
        targets: Vec::new(),
        until: Duration::from_secs(30),
        seed: since_1970.as_secs(),
        replay: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value\n\n{}", usage()));
        match arg.as_str() {
            "--seconds" => {
                wish.until = Duration::from_secs(value()?.parse().context("--seconds: not a number")?)
            }
            "--seed" => wish.seed = value()?.parse().context("--seed: not a number")?,
            "--replay" => wish.replay = Some(value()?.into()),
            name => {
                let found = target(name).with_context(|| format!("unknown: {name}\n\n{}", usage()))?;
                wish.targets.push(found);
            }
        }
    }
    if wish.targets.is_empty() {
        wish.targets = TARGETS.iter().collect();
    }
    Ok(wish)
}

fn run(wish: &Wish) -> Result<()> {
    if let Some(file) = &wish.replay {
        let [target] = wish.targets.as_slice() else { bail!("--replay needs the one target to give it to") };
        let input = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        println!("{}: {}", target.name, (target.read)(&input));
        return Ok(());
    }
    // Panics are findings, told of once at the end and not as they are caught.
    std::panic::set_hook(Box::new(|_| {}));
    let mut findings = 0;
    for target in &wish.targets {
        match Campaign::new(target, wish.seed).run(Until::Elapsed(wish.until)) {
            Ok(summary) => println!(
                "{:<12} ok: {} inputs, {} different answers (seed {})",
                target.name, summary.inputs, summary.answers, wish.seed
            ),
            Err(finding) => {
                findings += 1;
                let path = keep(target, &finding)?;
                println!("{:<12} FOUND: {}", target.name, finding.what);
                println!("    cargo xtask fuzz {} --replay {}", target.name, path.display());
            }
        }
    }
    if findings > 0 {
        bail!("{findings} finding(s)");
    }
    Ok(())
}

fn keep(target: &Target, finding: &Finding) -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fuzz");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let directory = directory.canonicalize().unwrap_or(directory);
    let sum =
        finding.input.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let path = directory.join(format!("{}-{sum:08x}", target.name));
    std::fs::write(&path, &finding.input).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
