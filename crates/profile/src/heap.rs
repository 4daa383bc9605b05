//! What the heap holds, and who asked for it.
//!
//! One allocation in [`EVERY`] bytes is noted with its stack, as Go does, from the start of the process: a profile that began
//! when somebody asked could not tell what was there before. All tables are of a fixed size. The cost of an allocation that
//! is not noted is a subtraction in thread-local memory; of a release, one look at a byte.

#![expect(unsafe_code, reason = "an allocator is unsafe by its contract")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::SystemTime,
};

use crate::{
    pprof::{Profile, Sample, Unit},
    stack::Frames,
};

/// Bytes between two notes, on average.
const EVERY: usize = 512 << 10;
/// Allocations that may be noted and not released yet: half a gigabyte's worth.
const LIVE: usize = 1024;
/// Different stacks.
const STACKS: usize = 512;
/// Frames of each that are kept.
const DEPTH: usize = 32;
/// Classes of addresses of which it is known whether one is noted.
const CLASSES: usize = 4096;

/// The system's allocator, watched. Make it the `#[global_allocator]` and call [`sample_heap`] for it to note anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledHeap;

/// Whether anything is noted.
static NOTING: AtomicBool = AtomicBool::new(false);
/// How many noted addresses each class has; 255 stays.
static FILTER: [AtomicU8; CLASSES] = [const { AtomicU8::new(0) }; CLASSES];
static TABLES: Mutex<Tables> = Mutex::new(Tables::new());

thread_local! {
    /// Bytes until the next note; without a destructor, so that it can be used as long as the thread is.
    static LEFT: Cell<isize> = const { Cell::new(0) };
    /// The state of this thread's random numbers; 0 before its first.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread is noting something.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Begins to note allocations. What was allocated before is not known.
pub fn sample_heap() {
    NOTING.store(true, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with the layout that was given, and what it returns is returned; notes
// are taken beside it and never touch the memory.
unsafe impl GlobalAlloc for SampledHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        let place = unsafe { System.alloc(layout) };
        count(place, layout.size());
        place
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        let place = unsafe { System.alloc_zeroed(layout) };
        count(place, layout.size());
        place
    }

    #[inline]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        release(place);
        // SAFETY: the caller's promise about the place and its layout.
        unsafe { System.dealloc(place, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Before it is another's. Should the system refuse, a note is lost and nothing else.
        release(place);
        // SAFETY: the caller's promise about the place, its layout and the size.
        let place = unsafe { System.realloc(place, layout, size) };
        count(place, size);
        place
    }
}

#[inline]
fn count(place: *mut u8, size: usize) {
    // Fails only when the thread is all but gone.
    let due = LEFT.try_with(|left| {
        let now = left.get().wrapping_sub(size.cast_signed());
        left.set(now);
        now < 0
    });
    if due == Ok(true) {
        note(place as usize, size);
    }
}

#[inline]
fn release(place: *mut u8) {
    if FILTER.get(class(place as usize)).is_some_and(|count| count.load(Ordering::Relaxed) > 0) {
        forget(place as usize);
    }
}

fn class(place: usize) -> usize {
    // Addresses are multiples of 16; the multiplication spreads what is left.
    (place >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 12)
}

#[cold]
#[inline(never)]
fn note(place: usize, size: usize) {
    let first = RANDOM.with(Cell::get) == 0;
    LEFT.with(|left| left.set(interval()));
    // A thread's first allocation only begins the count.
    if first || place == 0 || !NOTING.load(Ordering::Relaxed) || INSIDE.with(|inside| inside.replace(true)) {
        return;
    }
    let frames = Frames::chained();
    // Ours and the allocator's own frames are of no interest, but how many they are is the compiler's to say.
    if let Ok(mut tables) = TABLES.try_lock() {
        let stack = tables.stack(frames.found());
        if tables.insert(place, size, stack)
            && let Some(count) = FILTER.get(class(place))
        {
            let now = count.load(Ordering::Relaxed);
            count.store(now.saturating_add(1), Ordering::Relaxed);
        }
    }
    INSIDE.with(|inside| inside.set(false));
}

#[cold]
#[inline(never)]
fn forget(place: usize) {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if tables.remove(place)
        && let Some(count) = FILTER.get(class(place))
    {
        // Changed under the lock only.
        let now = count.load(Ordering::Relaxed);
        if now < u8::MAX {
            count.store(now - 1, Ordering::Relaxed);
        }
    }
}

/// A random distance to the next note, as between events that know nothing of one another.
#[expect(clippy::cast_possible_truncation, reason = "at most 37 times half a megabyte, rounded down")]
fn interval() -> isize {
    let random = RANDOM.with(|state| {
        let mut x = state.get();
        if x == 0 {
            // The place of the state differs from thread to thread.
            x = (std::ptr::from_ref(state) as u64) | 1;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x
    });
    // Between 0 and 1, without either.
    let unit = ((random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    (-unit.ln() * EVERY as f64) as isize
}

/// One allocation that was noted.
#[derive(Clone, Copy)]
struct Noted {
    /// 0 where there is none.
    place: usize,
    size: usize,
    stack: usize,
}

/// Where allocations were made.
#[derive(Clone, Copy)]
struct Stack {
    frames: [usize; DEPTH],
    len: usize,
    /// How many objects and bytes, estimated from those that were noted.
    objects: f64,
    bytes: f64,
}

/// Everything that was noted.
struct Tables {
    /// By address, with open addressing: an entry stands at its class or in the row behind it.
    live: [Noted; LIVE],
    live_count: usize,
    /// The first is for all that find no room.
    stacks: [Stack; STACKS],
    stack_count: usize,
}

impl Tables {
    const fn new() -> Self {
        Self {
            live: [Noted { place: 0, size: 0, stack: 0 }; LIVE],
            live_count: 0,
            stacks: [Stack { frames: [0; DEPTH], len: 0, objects: 0.0, bytes: 0.0 }; STACKS],
            stack_count: 1,
        }
    }

    /// The number of a stack, which is entered if it is new.
    fn stack(&mut self, frames: &[usize]) -> usize {
        let frames = frames.get(..DEPTH).unwrap_or(frames);
        let known = self.stacks.iter().take(self.stack_count).skip(1);
        if let Some(at) = known.into_iter().position(|it| it.frames.get(..it.len) == Some(frames)) {
            return at + 1;
        }
        let Some(stack) = self.stacks.get_mut(self.stack_count) else { return 0 };
        for (to, from) in stack.frames.iter_mut().zip(frames) {
            *to = *from;
        }
        stack.len = frames.len();
        self.stack_count += 1;
        self.stack_count - 1
    }

    /// Notes an allocation; false if there is no room for it among the living.
    fn insert(&mut self, place: usize, size: usize, stack: usize) -> bool {
        if let Some(it) = self.stacks.get_mut(stack) {
            let objects = weight(size);
            it.objects += objects;
            it.bytes += objects * size as f64;
        }
        // A quarter stays free, so that searches are short.
        if self.live_count >= LIVE / 4 * 3 {
            return false;
        }
        let mut at = home(place);
        while let Some(entry) = self.live.get_mut(at) {
            if entry.place == 0 {
                *entry = Noted { place, size, stack };
                self.live_count += 1;
                return true;
            }
            at = (at + 1) % LIVE;
        }
        false
    }

    fn remove(&mut self, place: usize) -> bool {
        let entry = |tables: &Self, at: usize| tables.live.get(at).map_or(0, |entry| entry.place);
        let mut hole = home(place);
        loop {
            match entry(self, hole) {
                0 => return false,
                found if found == place => break,
                _ => hole = (hole + 1) % LIVE,
            }
        }
        // Those behind it move up, unless they stand at home or the hole lies before it.
        let mut at = hole;
        loop {
            at = (at + 1) % LIVE;
            let next = entry(self, at);
            if next == 0 {
                break;
            }
            let (from_home, from_hole) = ((at + LIVE - home(next)) % LIVE, (at + LIVE - hole) % LIVE);
            if from_home >= from_hole {
                self.live.swap(hole, at);
                hole = at;
            }
        }
        if let Some(entry) = self.live.get_mut(hole) {
            entry.place = 0;
        }
        self.live_count -= 1;
        true
    }
}

fn home(place: usize) -> usize {
    class(place) % LIVE
}

/// How many objects of that size one that was noted stands for.
fn weight(size: usize) -> f64 {
    1.0 / (1.0 - (-(size.max(1) as f64) / EVERY as f64).exp())
}

/// What is held and what was ever asked for, by stack, since [`sample_heap`].
#[expect(clippy::cast_possible_truncation, reason = "estimates of bytes that fit into memory, rounded")]
#[must_use]
pub fn profile() -> Profile {
    // Nothing is allocated while the lock is held: the first look only counts.
    let room = lock().stack_count + 8;
    let mut rows: Vec<(Stack, f64, f64)> = Vec::with_capacity(room);
    {
        let tables = lock();
        for stack in tables.stacks.iter().take(tables.stack_count.min(room)) {
            rows.push((*stack, 0.0, 0.0));
        }
        for noted in tables.live.iter().filter(|noted| noted.place != 0) {
            if let Some((_, objects, bytes)) = rows.get_mut(noted.stack) {
                *objects += weight(noted.size);
                *bytes += weight(noted.size) * noted.size as f64;
            }
        }
    }
    let whole = |value: f64| value.round() as i64;
    let samples =
        rows.into_iter().filter(|(stack, ..)| stack.objects > 0.0).map(|(stack, objects, bytes)| {
            let values = vec![whole(stack.objects), whole(stack.bytes), whole(objects), whole(bytes)];
            match stack.frames.get(..stack.len) {
                Some(frames) if !frames.is_empty() => Sample::of_stack(frames.to_vec(), values),
                _ => Sample::named("(stacks that found no room)", values),
            }
        });
    Profile {
        samples: samples.collect(),
        kinds: vec![
            Unit::new("alloc_objects", "count"),
            Unit::new("alloc_space", "bytes"),
            Unit::new("inuse_objects", "count"),
            Unit::new("inuse_space", "bytes"),
        ],
        period: Some((Unit::new("space", "bytes"), EVERY as i64)),
        begun: Some(SystemTime::now()),
        ..Profile::default()
    }
}

fn lock() -> std::sync::MutexGuard<'static, Tables> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
