//! Where threads spend their CPU time.
//!
//! Each thread gets a kernel timer on its own CPU clock, which sends `SIGPROF` to that very thread; the handler writes the
//! stack into a ring of slots, from which the recorder takes them four times a second. A thread that does not run is not
//! disturbed.

#![expect(unsafe_code, reason = "signals and timers on threads' clocks are only to be had from C")]

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    fs, io, mem, ptr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use crate::{
    pprof::{Profile, Sample, Unit},
    stack::{Frames, MAX_FRAMES},
};

/// Samples per second of CPU time, as Go's.
const HERTZ: i64 = 100;
const PERIOD_NANOS: i64 = 1_000_000_000 / HERTZ;
/// Samples that may wait to be taken.
const SLOTS: usize = 256;
/// How often they are taken, and new threads looked for.
const ROUND: Duration = Duration::from_millis(250);
/// Different stacks that one profile may have; what comes later is counted as lost.
const MAX_STACKS: usize = 20_000;

/// Nothing in a slot.
const FREE: usize = 0;
/// Somebody writes to it.
const BUSY: usize = usize::MAX;

/// Whether somebody records: handlers write only then.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// Whether somebody has the right to.
static TAKEN: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static RING: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

struct Slot {
    /// [`FREE`], [`BUSY`], or how many frames there are.
    state: AtomicUsize,
    frames: [AtomicUsize; MAX_FRAMES],
}

impl Slot {
    const fn new() -> Self {
        Self { state: AtomicUsize::new(FREE), frames: [const { AtomicUsize::new(0) }; MAX_FRAMES] }
    }
}

/// Why there is no CPU profile.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// Somebody else records one.
    #[error("cpu profiling already in use")]
    InUse,
    /// The system gives no signal or timer.
    #[error("the kernel gives no timer for profiling")]
    System(#[source] io::Error),
}

/// Records for so long. Dropping the future ends it at once.
///
/// # Errors
/// [`CpuError`]; only one profile is recorded at a time.
pub async fn record(duration: Duration) -> Result<Profile, CpuError> {
    let mut recording = Recording::start()?;
    let (begun, started) = (SystemTime::now(), tokio::time::Instant::now());
    let mut stacks: HashMap<Box<[usize]>, i64> = HashMap::new();
    loop {
        let left = duration.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left.min(ROUND)).await;
        take(&mut stacks);
        recording.watch_threads();
    }
    drop(recording);
    take(&mut stacks);
    let lost = LOST.swap(0, Ordering::Relaxed);
    let mut samples: Vec<Sample> = stacks
        .into_iter()
        .map(|(stack, count)| Sample::of_stack(stack.into_vec(), vec![count, count * PERIOD_NANOS]))
        .collect();
    if lost > 0 {
        let lost = i64::try_from(lost).unwrap_or(i64::MAX);
        samples.push(Sample::named(
            "(samples that found no room)",
            vec![lost, lost.saturating_mul(PERIOD_NANOS)],
        ));
    }
    let kinds = vec![Unit::new("samples", "count"), Unit::new("cpu", "nanoseconds")];
    let period = (Unit::new("cpu", "nanoseconds"), PERIOD_NANOS);
    Ok(Profile {
        kinds,
        samples,
        period: Some(period),
        begun: Some(begun),
        duration: Some(started.elapsed()),
        ..Profile::default()
    })
}

/// Empties the ring into a count per stack.
fn take(stacks: &mut HashMap<Box<[usize]>, i64>) {
    for slot in &RING {
        let len = slot.state.load(Ordering::Acquire);
        if len == FREE || len == BUSY {
            continue;
        }
        let stack: Box<[usize]> = slot.frames.iter().take(len).map(|it| it.load(Ordering::Relaxed)).collect();
        slot.state.store(FREE, Ordering::Release);
        if stacks.len() < MAX_STACKS || stacks.contains_key(&stack) {
            *stacks.entry(stack).or_default() += 1;
        } else {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The timers, for as long as somebody records.
struct Recording {
    timers: HashMap<libc::pid_t, Timer>,
}

impl Recording {
    fn start() -> Result<Self, CpuError> {
        if TAKEN.swap(true, Ordering::Acquire) {
            return Err(CpuError::InUse);
        }
        // From here on dropping it gives the right back.
        let mut recording = Self { timers: HashMap::new() };
        install().map_err(CpuError::System)?;
        // What the unwinder does once only is done before a signal needs it.
        std::hint::black_box(Frames::here(None).len);
        LOST.store(0, Ordering::Relaxed);
        for slot in &RING {
            slot.state.store(FREE, Ordering::Relaxed);
        }
        RECORDING.store(true, Ordering::Release);
        recording.watch_threads();
        if recording.timers.is_empty() {
            return Err(CpuError::System(io::Error::last_os_error()));
        }
        Ok(recording)
    }

    /// Gives every thread that has none a timer, and takes those of the dead away.
    fn watch_threads(&mut self) {
        let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
        let living: Vec<libc::pid_t> =
            threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        self.timers.retain(|thread, _| living.contains(thread));
        for thread in living {
            if self.timers.contains_key(&thread) {
                continue;
            }
            // One that has ended since is no loss.
            if let Ok(timer) = Timer::start(thread) {
                self.timers.insert(thread, timer);
            }
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.store(false, Ordering::Release);
        self.timers.clear();
        TAKEN.store(false, Ordering::Release);
    }
}

/// A timer on one thread's CPU clock.
struct Timer(libc::timer_t);

// SAFETY: a timer's id belongs to the process, not to the thread that made it; it may be deleted from any.
unsafe impl Send for Timer {}

impl Timer {
    fn start(thread: libc::pid_t) -> io::Result<Self> {
        // <linux/posix-timers.h>: the thread's number, inverted, then "per thread" and "scheduler's time".
        let clock: libc::clockid_t = (!thread << 3) | 0b110;
        // SAFETY: an all-zero `sigevent` is a valid one; the fields that count are set below.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        event.sigev_notify_thread_id = thread;
        let mut id: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are to live values of the right types; the kernel writes the id and keeps neither.
        if unsafe { libc::timer_create(clock, &mut event, &mut id) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let timer = Self(id);
        let period = libc::timespec { tv_sec: 0, tv_nsec: PERIOD_NANOS };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the id is of a timer that exists, `times` lives during the call, and the old times are not asked for.
        if unsafe { libc::timer_settime(timer.0, 0, &times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the id is of a timer that exists and is deleted only here.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Sets the handler. It stays when a profile ends: a late signal without one would end the process.
fn install() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_signal;
    // SAFETY: an all-zero `sigaction` is a valid one (no flags, an empty mask).
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` is complete, its handler has the signature that SA_SIGINFO asks for and does only what a handler may:
    // atomics, its own stack, and the unwinder (see `Frames::here`).
    if unsafe { libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    if !RECORDING.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the place of this thread's errno is valid as long as the thread is.
    let errno = unsafe { *libc::__errno_location() };
    let slot = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
    let claimed = RING
        .get(slot)
        .filter(|slot| slot.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok());
    match claimed {
        None => {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Some(slot) => {
            // SAFETY: with SA_SIGINFO the kernel hands a valid `ucontext_t` to the handler.
            let at = unsafe { interrupted(context) };
            let frames = Frames::here(at);
            let mut len = frames.len.max(1);
            if frames.len == 0 {
                // The unwinder did not come as far; the innermost frame is known all the same.
                match (at, slot.frames.first()) {
                    (Some(at), Some(first)) => first.store(at, Ordering::Relaxed),
                    _ => len = FREE,
                }
            }
            for (to, from) in slot.frames.iter().zip(frames.found()) {
                to.store(*from, Ordering::Relaxed);
            }
            slot.state.store(len, Ordering::Release);
        }
    }
    // SAFETY: as above; the interrupted code finds its errno as it was.
    unsafe { *libc::__errno_location() = errno };
}

/// The address of the instruction that was interrupted, where it is known how to find it.
///
/// # Safety
/// `context` must be what the kernel gave to a handler with SA_SIGINFO.
unsafe fn interrupted(context: *mut c_void) -> Option<usize> {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's promise.
        let registers = unsafe { &(*context).uc_mcontext.gregs };
        let register = usize::try_from(libc::REG_RIP).ok()?;
        registers.get(register).and_then(|address| usize::try_from(address.cast_unsigned()).ok())
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: the caller's promise.
        Some(unsafe { (*context).uc_mcontext.pc } as usize)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, sync::Arc, time::Instant};

    use super::*;

    /// Both tests record, and one records at a time.
    static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    #[inline(never)]
    fn a_busy_function_of_this_test(stop: &AtomicBool) -> u64 {
        let mut sum = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            for number in 0..10_000_u64 {
                sum = black_box(sum.wrapping_mul(31).wrapping_add(number));
            }
        }
        sum
    }

    #[tokio::test]
    async fn a_busy_thread_is_seen() {
        let _one = ONE.lock().await;
        // A machine that stands still meanwhile gives nobody any time.
        let mut mine = 0;
        for _ in 0..10 {
            mine = samples_of_a_busy_thread().await;
            if mine >= 10 {
                break;
            }
        }
        // It had two to three seconds; a loaded machine gives it a part of them.
        assert!(mine >= 10, "{mine} samples");
    }

    async fn samples_of_a_busy_thread() -> i64 {
        let stop = Arc::new(AtomicBool::new(false));
        // Begun after the profile: threads are looked for all the time.
        let profile = record(Duration::from_secs(3));
        let busy = {
            let stop = Arc::clone(&stop);
            async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                tokio::task::spawn_blocking(move || a_busy_function_of_this_test(&stop)).await.unwrap();
            }
        };
        let recorded = async {
            let profile = profile.await;
            stop.store(true, Ordering::Relaxed);
            profile
        };
        let (profile, ()) = tokio::join!(recorded, busy);
        let profile = profile.unwrap();
        for sample in &profile.samples {
            assert_eq!(sample.values[1], sample.values[0] * 10_000_000);
        }
        profile
            .samples
            .iter()
            .filter(|sample| {
                crate::symbols(&sample.stack)
                    .iter()
                    .flatten()
                    .any(|name| name.contains("a_busy_function_of_this"))
            })
            .map(|sample| sample.values[0])
            .sum()
    }

    #[tokio::test]
    async fn one_at_a_time_and_none_after_the_end() {
        let _one = ONE.lock().await;
        let long = record(Duration::from_secs(1000));
        let second = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            record(Duration::from_secs(1)).await
        };
        tokio::select! {
            _ = long => panic!("it was to take long"),
            second = second => assert!(matches!(second, Err(CpuError::InUse))),
        }
        // The first was dropped, so another may begin.
        let begun = Instant::now();
        record(Duration::from_millis(10)).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(10));
        assert!(!RECORDING.load(Ordering::Relaxed));
    }
}
