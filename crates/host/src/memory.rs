//! Keeping the allocator small. An agent waits most of the time; what a burst of pods needed should not stay with it.

#![expect(unsafe_code, reason = "glibc's malloc is tuned by C functions that no safe crate offers")]

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

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn mallopt(parameter: i32, value: i32) -> i32;
    fn malloc_trim(keep: usize) -> i32;
}

#[cfg(test)]
mod tests {
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
