//! Which functions of a program are called, and in which order for the first time.
//!
//! The program runs under ptrace with a breakpoint at the start of every function. The first call of each stops its thread
//! once, is written down, and the breakpoint is taken away: a function costs one stop in its life, so that a node runs at nearly
//! its full speed, with its own threads and its own clock. What it needs of the machine is ptrace, which every Linux has.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mainstay_testkit::wait_until;
use nix::errno::Errno;
use nix::libc::{PTRACE_EVENT_EXEC, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// `int3`
const BREAKPOINT: u8 = 0xCC;
const NEXT_PERIOD: &str = "-";

/// The symbols of a binary: address in the file's own terms → its names. Where the linker has folded equal functions they
/// have one address.
pub(super) type Functions = BTreeMap<u64, Vec<String>>;

/// Reads them.
pub(super) fn functions(binary: &Path) -> Result<Functions> {
    let out = Command::new("readelf").args(["--symbols", "--wide"]).arg(binary).output();
    let out = out.context("readelf is missing; on Debian: apt-get install binutils")?;
    ensure!(out.status.success(), "readelf: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).context("readelf's output")?;
    let mut functions = Functions::new();
    for (address, name) in text.lines().filter_map(function) {
        functions.entry(address).or_default().push(name.to_owned());
    }
    for names in functions.values_mut() {
        names.sort();
        names.dedup();
    }
    Ok(functions)
}

/// The function that a line of readelf's names. Labels in hand-written code have no size.
fn function(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let size = words.next()?;
    let is_one = words.next()? == "FUNC" && size != "0" && address != 0;
    let (section, name) = (words.nth(2)?, words.next()?);
    (is_one && section != "UND").then_some((address, name))
}

/// Where a program stops and asks to be watched, and where what was seen is written.
#[derive(Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    fn asks(&self) -> PathBuf {
        self.0.join("asks")
    }

    /// A program that asks to be watched, waits until it is, and becomes the binary: whoever starts it has the binary as its
    /// own child, for signals and exit codes.
    pub(super) fn prepare(&self, binary: &Path) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt as _;
        let (path, dir) = (self.0.join("mainstay"), self.0.display());
        let script = format!(
            "#!/bin/sh\nset -e\nmkfifo {dir}/$$.go\necho $$ > {dir}/asks\nread go < {dir}/$$.go\nexec {} \"$@\"\n",
            binary.display()
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let made = Command::new("mkfifo").arg(self.asks()).status()?;
        ensure!(made.success(), "mkfifo {}", self.asks().display());
        Ok(path)
    }

    /// What was called in each life, in the order of the lives, period by period.
    pub(super) fn lives(&self) -> Result<Vec<Vec<Vec<u64>>>> {
        let mut lives = Vec::new();
        while let Ok(text) = fs::read_to_string(self.0.join(format!("{}.calls", lives.len()))) {
            let mut periods = vec![Vec::new()];
            for line in text.lines() {
                match (line, periods.last_mut()) {
                    (NEXT_PERIOD, _) | (_, None) => periods.push(Vec::new()),
                    (line, Some(period)) => period.push(u64::from_str_radix(line, 16)?),
                }
            }
            lives.push(periods);
        }
        Ok(lives)
    }

    /// From now on functions that were called before are noted again.
    pub(super) fn next_period(&self, pid: u32) -> Result<()> {
        let pid = Pid::from_raw(pid.try_into()?);
        fs::write(self.wish(), "")?;
        // Ignored by whoever does not ask for it; it only makes the watched one stop.
        kill(pid, Signal::SIGWINCH).context("the node has ended")?;
        wait_until(Duration::from_secs(60), "the breakpoints to be back", || {
            if self.wish().exists() { Err("not yet".to_owned()) } else { Ok(()) }
        })
    }

    fn wish(&self) -> PathBuf {
        self.0.join("next-period")
    }
}

/// Watches one program after the other, until it is killed. A process of its own: it waits for all that it watches, and would
/// take the exit codes of other children, too.
pub(super) fn serve(place: &Place, binary: &Path) -> Result<()> {
    let functions = functions(binary)?;
    for life in 0.. {
        let mut line = String::new();
        BufReader::new(File::open(place.asks())?).read_line(&mut line)?;
        let pid: i32 = line.trim().parse().with_context(|| format!("who asks: {line:?}"))?;
        let options = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(Pid::from_raw(pid), options).with_context(|| format!("cannot watch {pid}"))?;
        fs::write(place.0.join(format!("{pid}.go")), "\n")?;
        let text = watch(place, binary, &functions)?;
        // All at once: whoever finds it finds the whole.
        let (unfinished, whole) = (place.0.join("unfinished"), place.0.join(format!("{life}.calls")));
        fs::write(&unfinished, text)?;
        fs::rename(unfinished, whole)?;
    }
    Ok(())
}

/// Until all that is watched has ended: what was called, line by line.
fn watch(place: &Place, binary: &Path, functions: &Functions) -> Result<String> {
    let mut text = Text::default();
    let mut calls = String::new();
    loop {
        let stopped = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)) {
            Err(Errno::ECHILD) => return Ok(calls),
            stopped => stopped?,
        };
        match stopped {
            WaitStatus::PtraceEvent(pid, _, event) if event == PTRACE_EVENT_EXEC => {
                if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary) {
                    text = Text::of(pid, binary, functions)?;
                    go_on(ptrace::cont(pid, None))?;
                } else {
                    // A program that it runs.
                    go_on(ptrace::detach(pid, None))?;
                }
            }
            WaitStatus::PtraceEvent(pid, ..) => go_on(ptrace::cont(pid, None))?,
            WaitStatus::Stopped(pid, Signal::SIGTRAP) => match text.take_away(pid)? {
                Some(address) => {
                    // Threads may have come to one breakpoint at the same time, and forks have their own.
                    if text.seen.insert(address) {
                        writeln!(calls, "{address:x}")?;
                    }
                    go_on(ptrace::cont(pid, None))?;
                }
                None => go_on(ptrace::cont(pid, Signal::SIGTRAP))?,
            },
            WaitStatus::Stopped(pid, Signal::SIGWINCH) if place.wish().exists() => {
                text.put_back(pid)?;
                writeln!(calls, "{NEXT_PERIOD}")?;
                fs::remove_file(place.wish())?;
                go_on(ptrace::cont(pid, None))?;
            }
            WaitStatus::Stopped(pid, signal) => go_on(ptrace::cont(pid, signal))?,
            _ => {}
        }
    }
}

/// Somebody else may kill what is stopped.
fn go_on(done: nix::Result<()>) -> Result<()> {
    match done {
        Err(Errno::ESRCH) | Ok(()) => Ok(()),
        Err(error) => Err(error).context("ptrace"),
    }
}

/// The code of a running program, with its breakpoints.
#[derive(Debug, Default)]
struct Text {
    base: u64,
    /// What stands at the start of each function.
    first_bytes: HashMap<u64, u8>,
    seen: HashSet<u64>,
}

impl Text {
    /// Puts the breakpoints.
    fn of(pid: Pid, binary: &Path, functions: &Functions) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let own = || maps.lines().filter_map(mapping).filter(|it| Path::new(it.path) == binary);
        let base = own().map(|it| it.start).min().context("the program is not in its own memory")?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let mut text = Self { base, ..Self::default() };
        for part in own().filter(|it| it.runs) {
            let mut code = vec![0; usize::try_from(part.end - part.start)?];
            memory.read_exact_at(&mut code, part.start)?;
            let (from, to) = (part.start - base, part.end - base);
            for address in functions.range(from..to).map(|(address, _)| *address) {
                if let Some(byte) = code.get_mut(usize::try_from(address - from)?) {
                    text.first_bytes.insert(address, std::mem::replace(byte, BREAKPOINT));
                }
            }
            memory.write_all_at(&code, part.start)?;
        }
        ensure!(!text.first_bytes.is_empty(), "no function is where the symbols say");
        Ok(text)
    }

    /// Puts those back that were taken away.
    fn put_back(&mut self, pid: Pid) -> Result<()> {
        let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
        for address in self.seen.drain() {
            memory.write_all_at(&[BREAKPOINT], self.base + address)?;
        }
        Ok(())
    }

    /// Takes the breakpoint away at which a thread has stopped, and sets the thread back to it.
    fn take_away(&self, pid: Pid) -> Result<Option<u64>> {
        let Ok(regs) = ptrace::getregs(pid) else { return Ok(None) };
        let at = regs.rip.wrapping_sub(1);
        let address = at.wrapping_sub(self.base);
        let Some(byte) = self.first_bytes.get(&address) else { return Ok(None) };
        File::options().write(true).open(format!("/proc/{pid}/mem"))?.write_all_at(&[*byte], at)?;
        go_on(ptrace::setregs(pid, user_regs_struct { rip: at, ..regs }))?;
        Ok(Some(address))
    }
}

/// A line of `/proc/PID/maps` that is of a file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    runs: bool,
    path: &'a str,
}

fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let runs = words.next()?.contains('x');
    let path = words.nth(3)?.trim_start();
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping { start: number(start)?, end: number(end)?, runs, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_readelf() {
        let line = "   531: 00000000004a1f70   132 FUNC    LOCAL  DEFAULT   14 _ZN4core3fmt17h0E";
        assert_eq!(function(line), Some((0x4a_1f70, "_ZN4core3fmt17h0E")));
        for other in [
            "   Num:    Value          Size Type    Bind   Vis      Ndx Name",
            "     4: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND getenv@GLIBC_2.2.5 (2)",
            "   531: 00000000004a1f70     0 FUNC    LOCAL  DEFAULT   14 label",
            "   531: 00000000004a1f70     8 OBJECT  LOCAL  DEFAULT   14 table",
            "",
        ] {
            assert_eq!(function(other), None, "{other}");
        }
    }

    #[test]
    fn lines_of_maps() {
        let line = "55d0a1c00000-55d0a1e00000 r-xp 00200000 fe:00 1234                       /a b/mainstay";
        let found = mapping(line).unwrap();
        assert_eq!((found.start, found.end, found.runs), (0x55d0_a1c0_0000, 0x55d0_a1e0_0000, true));
        assert_eq!(found.path, "/a b/mainstay");
        assert_eq!(mapping("7f00-7f01 rw-p 00000000 00:00 0 ").map(|it| it.path), Some(""));
    }
}
