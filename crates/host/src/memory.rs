//! Keeping the process small. An agent waits most of the time; what a burst of pods needed should not stay with it.

#![expect(
    unsafe_code,
    reason = "glibc's malloc is tuned by C functions that no safe crate offers; mappings by madvise"
)]

use std::ops::Range;

/// Lets all threads share one heap instead of giving each its own, and keeps it whole: what is large and soon over (the state of
/// a pod's worker, an answer of the runtime) gets pages of its own, and what is freed is joined with its neighbours at once, so
/// that a burst leaves fewer pages with a little on each. Call it before threads are started.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    {
        // <malloc.h>
        const M_ARENA_MAX: i32 = -8;
        const M_MMAP_THRESHOLD: i32 = -3;
        const M_MXFAST: i32 = 1;
        for (parameter, value) in [(M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 16 << 10), (M_MXFAST, 0)] {
            // SAFETY: mallopt takes two integers, may be called at any time, and says by its result whether it did anything;
            // a refusal only means that more memory is used.
            unsafe { mallopt(parameter, value) };
        }
    }
}

/// Gives memory that is free within the heap back to the system. Blocks other threads' allocations for some
/// milliseconds at most; call it when things are quiet, off the async workers.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes a number of bytes to keep, is safe to call from any thread, and touches free memory
        // only.
        unsafe { malloc_trim(64 << 10) };
    }
}

/// Lets go of the pages of the program and its libraries: those that are needed are mapped again when they are touched, without
/// a read, from the kernel's cache of files; those that were needed once, for the start or a kind of pod that is gone, or were
/// mapped because they lie beside such a one, are not. Costs some hundred page faults afterwards, a millisecond or two in all.
/// What is not as it is in its file (what the loader has filled in, a debugger's breakpoints) is left alone.
pub fn release_program_pages() {
    #[cfg(target_os = "linux")]
    for pages in
        std::fs::read_to_string("/proc/self/smaps").map(|text| as_in_files(&text)).unwrap_or_default()
    {
        const MADV_DONTNEED: i32 = 4;
        // SAFETY: the range is a mapping of this process, of a file, private, not writable, and without a page that differs from
        // the file: what is dropped comes back the same at the next touch. Such a mapping goes away or becomes writable only if
        // a library is unloaded or relocated anew; nothing here loads any after the start. A refusal changes nothing.
        unsafe { madvise(pages.start as *mut std::ffi::c_void, pages.len(), MADV_DONTNEED) };
    }
}

/// The mappings in `smaps` that hold nothing but pages of files, as they are in the files.
fn as_in_files(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // The mapping that the lines are about, and whether it has pages.
    let mut current: Option<(Range<usize>, bool)> = None;
    let mut take = |mapping: Option<(Range<usize>, bool)>| {
        if let Some((pages, true)) = mapping {
            found.push(pages);
        }
    };
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next().unwrap_or_default()) else { continue };
        match first.strip_suffix(':') {
            None => {
                take(current.take());
                let path = words.nth(3).unwrap_or_default();
                let pages = first.split_once('-').and_then(|(from, to)| {
                    Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
                });
                if matches!(second, "r-xp" | "r--p") && path.starts_with('/') {
                    current = pages.map(|pages| (pages, false));
                }
            }
            Some("Rss") => {
                if let Some((_, has_pages)) = &mut current {
                    *has_pages = second != "0";
                }
            }
            Some("Anonymous" | "Swap" | "Locked") if second != "0" => current = None,
            Some(_) => {}
        }
    }
    take(current);
    found
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn mallopt(parameter: i32, value: i32) -> i32;
    fn malloc_trim(keep: usize) -> i32;
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    fn madvise(start: *mut std::ffi::c_void, length: usize, advice: i32) -> i32;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(smaps: &str, range: &Range<usize>) -> String {
        let start = format!("{:x}-{:x} ", range.start, range.end);
        let rest = smaps.lines().skip_while(|line| !line.starts_with(&start));
        rest.skip(1).find(|line| line.starts_with("Rss:")).unwrap_or_default().to_owned()
    }

    #[test]
    fn pages_of_the_program_go_and_come_back() {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = std::env::current_exe().unwrap();
        let code = text
            .lines()
            .find(|line| line.contains(" r-xp ") && line.ends_with(own.to_str().unwrap()))
            .and_then(|line| line.split_once(' '))
            .and_then(|(range, _)| range.split_once('-'))
            .map(|(from, to)| {
                usize::from_str_radix(from, 16).unwrap()..usize::from_str_radix(to, 16).unwrap()
            })
            .unwrap();
        assert!(as_in_files(&text).contains(&code), "{text}");
        let kib = |text: &str| {
            let line = resident(text, &code);
            line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        // All of it is there first, so that other tests in this process can only make it less afterwards.
        const MADV_POPULATE_READ: i32 = 22;
        let (start, length) = (code.start as *mut std::ffi::c_void, code.len());
        // SAFETY: the range is a mapping of this process, whose pages are only read.
        let populated = unsafe { madvise(start, length, MADV_POPULATE_READ) };
        assert_eq!(populated, 0);
        let before = std::fs::read_to_string("/proc/self/smaps").unwrap();
        release_program_pages();
        let after = std::fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(kib(&after) < kib(&before), "{} before, {} after", kib(&before), kib(&after));
    }

    #[test]
    fn only_what_is_as_in_its_file_is_let_go() {
        let mapping = |head: &str, rss: u32, anonymous: u32, swap: u32, locked: u32| {
            format!(
                "{head}\nSize: 64 kB\nRss: {rss} kB\nAnonymous: {anonymous} kB\nSwap: {swap} kB\nLocked: {locked} kB\nVmFlags: rd mr\n"
            )
        };
        let rows = [
            ("code", mapping("1000-2000 r-xp 00001000 08:01 7 /bin/it", 4, 0, 0, 0), true),
            (
                "code of a file that was replaced",
                mapping("1000-2000 r-xp 00001000 08:01 7 /bin/it (deleted)", 4, 0, 0, 0),
                true,
            ),
            ("constants", mapping("1000-2000 r--p 00000000 08:01 7 /bin/it", 4, 0, 0, 0), true),
            ("nothing there", mapping("1000-2000 r-xp 00001000 08:01 7 /bin/it", 0, 0, 0, 0), false),
            (
                "filled in by the loader",
                mapping("1000-2000 r--p 00001000 08:01 7 /bin/it", 4, 4, 0, 0),
                false,
            ),
            ("the same, swapped out", mapping("1000-2000 r--p 00001000 08:01 7 /bin/it", 4, 0, 4, 0), false),
            ("kept in memory", mapping("1000-2000 r-xp 00001000 08:01 7 /bin/it", 4, 0, 0, 4), false),
            ("writable", mapping("1000-2000 rw-p 00001000 08:01 7 /bin/it", 4, 0, 0, 0), false),
            ("shared", mapping("1000-2000 r--s 00001000 08:01 7 /bin/it", 4, 0, 0, 0), false),
            ("the kernel's", mapping("1000-2000 r-xp 00000000 00:00 0 [vdso]", 4, 0, 0, 0), false),
            ("nobody's", mapping("1000-2000 r--p 00000000 00:00 0", 4, 0, 0, 0), false),
            ("not to be read", "zz r-xp\nRss: x\n\n".to_owned(), false),
        ];
        for (what, text, expected) in rows {
            let next = mapping("3000-4000 r-xp 00001000 08:01 8 /lib/other", 4, 0, 0, 0);
            let found = as_in_files(&format!("{text}{next}"));
            assert_eq!(found.contains(&(0x1000..0x2000)), expected, "{what}");
            assert!(found.contains(&(0x3000..0x4000)), "{what}: the one behind it");
        }
    }

    #[test]
    fn memory_stays_usable() {
        super::share_heap();
        let before: Vec<Vec<u8>> = (0..1000_u16).map(|i| i.to_le_bytes().repeat(100)).collect();
        let kept: Vec<_> = before.iter().step_by(7).cloned().collect();
        drop(before);
        super::release_free_memory();
        assert!(
            kept.iter().zip((0..1000_u16).step_by(7)).all(|(bytes, i)| bytes.starts_with(&i.to_le_bytes()))
        );
    }
}
