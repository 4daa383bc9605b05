//! A load that counts itself, for `tests/known_loads.rs`: what it says is what a node that runs it must tell of it.
//!
//! - `load half`: has half a core, in turns of a tenth of a second, and says at the ends of each turn what time it is and how much CPU
//!   time it has used, both in nanoseconds: `mark TIME USED`;
//! - `load hold BYTES`: has touched so many bytes, and says `held BYTES`;
//! - `load write BYTES FILE GO`: waits for the file `GO`, writes so many bytes to `FILE` past the page cache, and says `wrote BYTES`.
//!
//! Afterwards it does nothing until it is ended.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::{
    fs,
    hint::black_box,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    fs::OFlags,
    time::{ClockId, clock_gettime},
};

/// One turn, of which half is work.
const TURN: Duration = Duration::from_millis(100);
/// What a disk wants addresses and lengths to be multiples of.
const ALIGNMENT: usize = 4096;
const CHUNK: usize = 1 << 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match *args.as_slice() {
        ["half"] => half()?,
        ["hold", bytes] => hold(bytes.parse()?),
        ["write", bytes, file, go] => write(bytes.parse()?, Path::new(file), Path::new(go))?,
        _ => bail!("load half | hold BYTES | write BYTES FILE GO"),
    }
    loop {
        sleep(Duration::from_secs(3600));
    }
}

/// All threads' CPU time, in user and kernel mode: the sum that `getrusage` tells, which is made of this clock.
fn used() -> Result<Duration> {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).context("the CPU time")
}

fn mark() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    println!("mark {} {}", now.as_nanos(), used()?.as_nanos());
    Ok(())
}

fn half() -> Result<()> {
    loop {
        let (begun, until) = (Instant::now(), used()? + TURN / 2);
        mark()?;
        let mut number = 1_u64;
        while used()? < until {
            for _ in 0..10_000 {
                number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
        mark()?;
        sleep(TURN.saturating_sub(begun.elapsed()));
    }
}

fn hold(bytes: usize) {
    let held = black_box(vec![1_u8; bytes]);
    println!("held {}", held.len());
    std::mem::forget(held);
}

fn write(bytes: usize, path: &Path, go: &Path) -> Result<()> {
    while !go.exists() {
        sleep(Duration::from_millis(100));
    }
    ensure!(bytes.is_multiple_of(ALIGNMENT), "{bytes} is no multiple of {ALIGNMENT}");
    let space = vec![1_u8; CHUNK + ALIGNMENT];
    let start = space.as_ptr().align_offset(ALIGNMENT);
    let chunk = space.get(start..start + CHUNK).context("no room")?;
    let direct = i32::try_from(OFlags::DIRECT.bits())?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).custom_flags(direct).open(path)?;
    let mut written = 0;
    while written < bytes {
        let piece = chunk.get(..CHUNK.min(bytes - written)).context("no room")?;
        file.write_all(piece)?;
        written += piece.len();
    }
    file.sync_all()?;
    println!("wrote {written}");
    Ok(())
}
