//! Keeping the process small. An agent waits most of the time; what a burst of pods needed should not stay with it.

#![expect(
    unsafe_code,
    reason = "glibc's malloc is tuned by C functions that no safe crate offers; what is loaded and mapped is told and let go of by such"
)]

use std::{ops::Range, sync::OnceLock};

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

/// Where the program and the libraries that it was started with lie in memory, as far as they are never written to.
static PROGRAM: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// Notes what [`release_program_pages`] may let go of. Call it at the start: what is loaded by then stays where it is for as long as the
/// process lives, which what is loaded later (by the resolver, say) need not.
pub fn note_program_pages() {
    let mut found: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback is of the type that the loader wants, and `data` is the list, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) };
    PROGRAM.set(found).ok();
}

/// Takes down what an object has in memory that nobody writes to.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, data: *mut std::ffi::c_void) -> i32 {
    // SAFETY: the loader gives a valid description, and the list that it was called with.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Vec<Range<usize>>>()) };
    // SAFETY: a name is a C string or null, and stays while the object is there.
    let name = (!info.dlpi_name.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(info.dlpi_name) });
    // The kernel's own part has no file.
    if info.dlpi_phdr.is_null() || name.is_some_and(|name| name.to_bytes().starts_with(b"linux-vdso")) {
        return 0;
    }
    // SAFETY: there are as many headers as the loader says.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let start = usize::try_from(info.dlpi_addr.wrapping_add(header.p_vaddr)).unwrap_or(0);
            let length = usize::try_from(header.p_memsz).unwrap_or(0);
            let page = usize::try_from(crate::page_size()).unwrap_or(4096);
            found.extend(whole_pages(start, length, page));
        }
    }
    0
}

/// The pages that lie wholly in a range.
fn whole_pages(start: usize, length: usize, page: usize) -> Option<Range<usize>> {
    let end = start.checked_add(length)? / page * page;
    let start = start.checked_next_multiple_of(page)?;
    (start < end).then_some(start..end)
}

/// Lets go of the pages of the program and its libraries: those that are needed are mapped again when they are touched, without
/// a read, from the kernel's cache of files; those that were needed once, for the start or a kind of pod that is gone, or were
/// mapped because they lie beside such a one, are not. Costs some hundred page faults afterwards, a millisecond or so in all.
/// Nothing happens while a debugger is there, whose breakpoints are in these pages.
pub fn release_program_pages() {
    const MADV_DONTNEED: i32 = 4;
    if is_traced() {
        return;
    }
    for pages in PROGRAM.get().into_iter().flatten() {
        // SAFETY: the range is a part of the program or of a library that it was started with, which are never unmapped; it is mapped
        // from a file, privately, and nobody writes to it: what is dropped comes back the same at the next touch. A refusal changes nothing.
        unsafe { libc::madvise(pages.start as *mut std::ffi::c_void, pages.len(), MADV_DONTNEED) };
    }
}

fn is_traced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_none_or(|pid| pid.trim() != "0")
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn mallopt(parameter: i32, value: i32) -> i32;
    fn malloc_trim(keep: usize) -> i32;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes of the mapping that begins there.
    fn resident(start: usize) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{start:x}-");
        let rest = smaps.lines().skip_while(|line| !line.starts_with(&head));
        let line = rest.skip(1).find(|line| line.starts_with("Rss:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn pages_of_the_program_go_and_come_back() {
        const MADV_POPULATE_READ: i32 = 22;
        note_program_pages();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::env::current_exe().unwrap();
        let line = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(own.to_str().unwrap()));
        let (from, to) = line.unwrap().split_once(' ').unwrap().0.split_once('-').unwrap();
        let code = usize::from_str_radix(from, 16).unwrap()..usize::from_str_radix(to, 16).unwrap();
        let noted = PROGRAM.get().unwrap();
        assert!(
            noted.iter().any(|it| code.contains(&it.start) && it.end <= code.end),
            "{noted:x?} {code:x?}"
        );
        for line in
            maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|modes| modes.contains('w')))
        {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let (from, to) =
                (usize::from_str_radix(from, 16).unwrap(), usize::from_str_radix(to, 16).unwrap());
            assert!(
                noted.iter().all(|it| it.end <= from || to <= it.start),
                "{line} may be written to: {noted:x?}"
            );
        }
        // All of it is there first, so that other tests in this process can only make it less afterwards.
        let (start, length) = (code.start as *mut std::ffi::c_void, code.len());
        // SAFETY: the range is a mapping of this process, whose pages are only read.
        assert_eq!(unsafe { libc::madvise(start, length, MADV_POPULATE_READ) }, 0);
        let before = resident(code.start);
        release_program_pages();
        let after = resident(code.start);
        assert!(after < before, "{before} kB before, {after} after");
    }

    #[test]
    fn only_whole_pages() {
        assert_eq!(whole_pages(0x1000, 0x2000, 0x1000), Some(0x1000..0x3000));
        assert_eq!(whole_pages(0x1001, 0x2fff, 0x1000), Some(0x2000..0x4000));
        assert_eq!(whole_pages(0x1001, 0x1000, 0x1000), None);
        assert_eq!(whole_pages(0x1000, 0, 0x1000), None);
        assert_eq!(whole_pages(usize::MAX, 2, 0x1000), None);
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
