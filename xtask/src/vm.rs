//! `cargo xtask vm`: the whole-node tests on a machine of the kind that most clusters have, in software: Debian with
//! systemd, cgroup v2, pressure stall information, swap and every capability.
//!
//! The root file system is made once (`scripts/vm/rootfs.sh`) and never written to; binaries, peers and tests go onto a
//! second disk, made anew for every run; what happens is read from a port of the machine, line by line.

mod disks;
mod report;

use crate::ci::Tally;
use anyhow::{Context, Result, bail, ensure};
use disks::Disks;
use mainstay_testkit::{build_dir, workspace_root};
use report::{Progress, Report, Step};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Not run without being asked for (by name or `--all`), and why.
const LEFT_OUT: [(&str, &str); 4] = [
    (
        "scale",
        "a hundred pods cost an emulated CPU an hour, and its speed says nothing about how much a node can bear",
    ),
    ("consumers", "there is no Prometheus in the machine"),
    (
        "debugging",
        "there is no Go in the machine, whose tool opens profiles, and nothing in it depends on the machine",
    ),
    (
        "traces",
        "there is no OpenTelemetry collector in the machine, and nothing in it depends on the machine",
    ),
];
/// Nor these, which are another tier: a control plane beside the node costs an emulated CPU minutes for each of them.
const WITH_A_CONTROL_PLANE: [&str; 17] = [
    "away",
    "bad_weather",
    "claims",
    "cluster",
    "cluster_ends",
    "cluster_pods",
    "member",
    "metrics_server",
    "manners",
    "misfits",
    "outage",
    "private_images",
    "renewals",
    "storms",
    "three_nodes",
    "trust_bundles",
    "workloads",
];
/// Run once more with the cgroupfs driver: those that look at cgroups.
const ALSO_ON_CGROUPFS: [&str; 3] = ["cgroups", "containers", "machine"];
/// Run by CI, in six minutes of a quiet machine.
const IN_CI: [&str; 3] = ["cgroups", "facilities", "machine"];
/// Beyond this one test program is ended and counts as failed.
const STEP_LIMIT: Duration = Duration::from_secs(1800);
const DEADLINE: Duration = Duration::from_secs(180 * 60);
const DEADLINE_OF_ALL: Duration = Duration::from_secs(240 * 60);
/// The factor for every deadline of the tests, unless the environment has another: emulation that shares its CPUs needs more.
const PATIENCE: &str = "10";
/// The same for a steady machine, which is slow by its own clock, but never slower than that.
const STEADY_PATIENCE: &str = "6";
/// Emulation is slow at what hardware does aside: checking timers, reading any clock but the CPU's own, defences, clearing pages.
const KERNEL_ARGUMENTS: [&str; 15] = [
    "root=/dev/vda",
    "rw",
    "console=ttyS0",
    "panic=-1",
    "psi=1",
    "systemd.show_status=false",
    "no_timer_check",
    "tsc=reliable",
    "clocksource=tsc",
    "mitigations=off",
    "nokaslr",
    "audit=0",
    "init_on_alloc=0",
    "transparent_hugepage=always",
    "hugepages=16",
];
const THREADS: u32 = 4;
const MEMORY_MIB: u32 = 4096;

/// What to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    all: bool,
    driver: Option<String>,
    /// One CPU whose clock counts its own instructions.
    steady: bool,
    /// Another run's name, so that two can be made at once.
    name: Option<String>,
    files: Vec<String>,
    /// For libtest: names of tests, `--exact` and the like.
    arguments: Vec<String>,
}

impl Wish {
    /// What every run of CI shows: that pods, containers and the shared cgroups are in systemd's slices on cgroup v2, with their
    /// limits, and what only a whole machine has. All files take emulated hours that a shared machine does not have.
    pub(crate) fn for_ci() -> Self {
        let files = IN_CI.map(str::to_owned).into();
        Self { driver: Some("systemd".into()), files, ..Self::default() }
    }

    /// From the words after `vm`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut wish = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--all" => wish.all = true,
                "--driver" => match words.next().copied() {
                    Some(driver @ ("systemd" | "cgroupfs")) => wish.driver = Some(driver.to_owned()),
                    other => bail!("--driver is systemd or cgroupfs, not {}", other.unwrap_or("nothing")),
                },
                "--steady" => wish.steady = true,
                "--name" => match words.next().copied() {
                    Some(name) if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()) => {
                        wish.name = Some(name.to_owned());
                    }
                    other => {
                        bail!("--name takes a word of letters and digits, not {}", other.unwrap_or("nothing"))
                    }
                },
                "--" => wish.arguments.extend(words.by_ref().map(|word| (*word).to_owned())),
                flag if flag.starts_with('-') => bail!("vm does not know {flag}"),
                file => wish.files.push(file.to_owned()),
            }
        }
        Ok(wish)
    }

    /// Which test programs run with which driver, in their order.
    fn plan(&self, programs: &[String]) -> Result<Vec<Step>> {
        for file in &self.files {
            ensure!(programs.contains(file), "no test file {file}; there are {}", programs.join(", "));
        }
        let wanted = |name: &str| match (self.all, self.files.as_slice()) {
            (true, _) => true,
            (false, []) => why_left_out(name).is_none(),
            (false, files) => files.iter().any(|file| file == name),
        };
        let drivers = |name: &str| -> Vec<&str> {
            match &self.driver {
                Some(driver) => vec![driver],
                None if self.all || (self.files.is_empty() && ALSO_ON_CGROUPFS.contains(&name)) => {
                    vec!["systemd", "cgroupfs"]
                }
                None => vec!["systemd"],
            }
        };
        // Named ones come in the order they were named in.
        let mut order: Vec<&String> = programs.iter().filter(|name| wanted(name)).collect();
        order.sort_by_key(|name| self.files.iter().position(|file| file == *name));
        Ok(order
            .into_iter()
            .flat_map(|name| {
                drivers(name)
                    .into_iter()
                    .map(move |driver| Step { driver: driver.to_owned(), program: name.clone() })
            })
            .collect())
    }
}

/// `cargo xtask vm`.
pub(crate) fn run(wish: &Wish, tally: &mut Tally) -> Result<()> {
    let start = Instant::now();
    let shared = build_dir().join("vm");
    let dir = wish.name.as_ref().map_or_else(|| shared.clone(), |name| shared.join(format!("run-{name}")));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // One run after another in one directory; what all runs share is made by one at a time.
    let _own = locked(&dir.join("lock"))?;
    let making = locked(&shared.join("lock-of-making"))?;
    let programs = build()?;
    let names: Vec<String> = programs.iter().map(|(name, _)| name.clone()).collect();
    let plan = wish.plan(&names)?;
    for name in names.iter().filter(|name| plan.iter().all(|step| step.program != **name)) {
        if let Some(why) = why_left_out(name) {
            println!("left out: {name} ({why})");
        }
    }
    let disks =
        Disks::make(&shared, &dir, &programs, &plan_text(&plan, &wish.arguments), &environment(wish.steady))?;
    drop(making);
    println!("disks ready after {:.0} s", start.elapsed().as_secs_f32());
    let log = dir.join("log");
    // Nothing of an older run shall be taken for this one's.
    fs::remove_dir_all(&log).ok();
    fs::create_dir_all(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let deadline = if wish.all { DEADLINE_OF_ALL } else { DEADLINE };
    let machine = Machine::start(&disks, &log, wish.steady)?;
    let report = watch(machine, &log, plan, deadline, tally)?;
    print!("{}", report.table());
    println!("the test machine took {:.0} s", start.elapsed().as_secs_f32());
    if let Some(why) = report.failure() {
        disks.keep_failed(&log)?;
        bail!("{why}; see {} and what is beside it", log.join("console.log").display());
    }
    Ok(())
}

/// Waits for whoever holds it. Dropping the file lets go of it.
fn locked(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().context("cannot wait for another run of the test machine")?;
    Ok(file)
}

fn why_left_out(program: &str) -> Option<&'static str> {
    if WITH_A_CONTROL_PLANE.contains(&program) {
        return Some("a control plane is another tier, and costs an emulated CPU minutes");
    }
    LEFT_OUT.iter().find(|(file, _)| *file == program).map(|(_, why)| *why)
}

fn plan_text(plan: &[Step], arguments: &[String]) -> String {
    let limit = STEP_LIMIT.as_secs();
    let arguments = arguments.join(" ");
    plan.iter()
        .map(|step| {
            format!("{} {} {limit} --test-threads={THREADS} {arguments}\n", step.driver, step.program)
        })
        .collect()
}

fn environment(steady: bool) -> String {
    let usual = if steady { STEADY_PATIENCE } else { PATIENCE };
    let patience = std::env::var("MAINSTAY_TEST_PATIENCE").unwrap_or_else(|_| usual.to_owned());
    let workspace = workspace_root().display();
    format!("export MAINSTAY_TEST_PATIENCE='{patience}'\nexport WORKSPACE='{workspace}'\n")
}

/// Builds mainstay and the test programs and says where the latter are, by name. Everything is built at once, as CI does: with
/// other packages dependencies would have other features, and all of it would be built again.
fn build() -> Result<Vec<(String, PathBuf)>> {
    let cargo = || {
        let mut command = crate::cargo();
        command.current_dir(workspace_root()).stderr(Stdio::inherit());
        command
    };
    let status = cargo()
        .args(["build", "--locked", "--workspace", "--all-targets"])
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the workspace does not build");
    let output = cargo()
        .args(["test", "--locked", "--no-run", "--workspace", "--all-targets", "--message-format", "json"])
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let mut programs = report::test_programs(&String::from_utf8_lossy(&output.stdout));
    programs.sort();
    ensure!(!programs.is_empty(), "cargo named no test programs");
    Ok(programs)
}

/// Stays with the machine to its end, or ends it at the deadline.
fn watch(
    mut machine: Machine,
    log: &Path,
    plan: Vec<Step>,
    deadline: Duration,
    tally: &mut Tally,
) -> Result<Report> {
    let mut lines_kept = File::create(log.join("results.log")).context("cannot keep the results")?;
    let lines = machine.lines()?;
    let end = Instant::now() + deadline;
    let mut report = Report::new(plan);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) => {
                writeln!(lines_kept, "{line}").context("cannot keep the results")?;
                match report.take(&line, machine.cpu_seconds()) {
                    Progress::Shown(text) => println!("{text}"),
                    Progress::Output => {
                        tally.add_line(&line);
                        println!("{line}");
                    }
                }
            }
            // The machine has ended, by itself or not: the report knows whether it was done.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                report.late(deadline);
                break;
            }
        }
    }
    Ok(report)
}

/// The emulator; dropping it ends it.
struct Machine(Child);

impl Machine {
    fn start(disks: &Disks, log: &Path, steady: bool) -> Result<Self> {
        let drive = |path: &Path, more: &str| {
            format!("file={},format=raw,if=none,cache=unsafe,aio=threads,{more}", path.display())
        };
        let kernel = KERNEL_ARGUMENTS.join(" ");
        // A steady machine's clock counts what its CPU has done (a nanosecond an instruction): however little of a busy host it gets,
        // no deadline in it comes sooner. It has one, because a second does not start under that clock.
        let emulation: &[&str] = if steady {
            &["-accel", "tcg,thread=single,tb-size=1024", "-icount", "shift=0,sleep=off", "-smp", "1"]
        } else {
            &["-accel", "tcg,thread=multi,tb-size=1024", "-smp", "2"]
        };
        // Should this process be killed, the machine must not stay.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-machine", "q35"])
            .args(emulation)
            // Five-level page tables only make every emulated look-up longer; instructions that copy strings go byte by byte.
            .args(["-cpu", "max,la57=off,erms=off,fsrm=off", "-m"])
            .arg(format!("{MEMORY_MIB}M"))
            .args(["-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none", "-nodefaults"])
            .arg("-serial")
            .arg(format!("file:{}", log.join("console.log").display()))
            .arg("-kernel")
            .arg(disks.kernel())
            .arg("-initrd")
            .arg(disks.initrd())
            .args(["-append", &kernel, "-drive"])
            .arg(drive(&disks.root(), "id=root,snapshot=on"))
            .args(["-device", "virtio-blk-pci,drive=root", "-drive"])
            .arg(drive(disks.payload(), "id=payload"))
            .args(["-device", "virtio-blk-pci,drive=payload", "-drive"])
            .arg(drive(disks.swap(), "id=swap"))
            .args(["-device", "virtio-blk-pci,drive=swap,serial=swap"])
            .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
            .args(["-chardev", "stdio,id=results,signal=off"])
            .args(["-device", "virtserialport,chardev=results,name=mainstay"])
            // Held open by the child's handle: at its end the emulator would take the port for disconnected.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(
                "cannot start qemu-system-x86_64; install Debian's qemu-system-x86 (`make setup-test`)",
            )?;
        Ok(Self(child))
    }

    /// What it has cost so far, which on a busy machine says more than the time that has passed.
    fn cpu_seconds(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second().max(1)
    }

    /// What the tests say. The thread ends with the machine, which closes its output.
    fn lines(&mut self) -> Result<Receiver<String>> {
        let output = self.0.stdout.take().context("the machine has no output")?;
        let (sender, receiver) = sync_channel(1024);
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(receiver)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(words: &[&str]) -> Vec<String> {
        let programs = ["containers", "lifecycle", "scale"].map(str::to_owned);
        let steps = Wish::parse(words).and_then(|wish| wish.plan(&programs)).unwrap();
        steps.iter().map(|step| format!("{} {}", step.driver, step.program)).collect()
    }

    #[test]
    fn what_runs_by_default_and_when_asked_for() {
        assert_eq!(plan(&[]), ["systemd containers", "cgroupfs containers", "systemd lifecycle"]);
        assert_eq!(plan(&["containers"]), ["systemd containers"]);
        assert_eq!(plan(&["--driver", "cgroupfs", "scale"]), ["cgroupfs scale"]);
        assert_eq!(plan(&["scale", "containers"]), ["systemd scale", "systemd containers"]);
        assert_eq!(plan(&["--all"]).len(), 6);
        assert!(Wish::parse(&["--driver", "none"]).is_err());
        let wish = Wish::parse(&["nothing"]).unwrap();
        assert!(
            wish.plan(&["containers".to_owned()]).unwrap_err().to_string().contains("there are containers")
        );
        assert!(Wish::parse(&["--name", "../up"]).is_err());
        let wish = Wish::parse(&["--steady", "--name", "two", "logs"]).unwrap();
        assert_eq!(
            (wish.steady, wish.name.as_deref(), wish.files.as_slice()),
            (true, Some("two"), &["logs".to_owned()][..])
        );
        let wish = Wish::parse(&["logs", "--", "--exact", "a_test"]).unwrap();
        assert_eq!(wish.arguments, ["--exact", "a_test"]);
    }
}
