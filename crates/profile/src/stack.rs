//! The return addresses on this thread's stack: by the unwind tables that every build has for panics, or by the chain of frame
//! pointers that builds of this workspace have (`.cargo/config.toml`).

#![expect(
    unsafe_code,
    reason = "unwinding is libgcc's, and reading a frame that may not be there the kernel's"
)]

use std::ffi::{c_int, c_ulong, c_void};

/// Frames of a stack that are kept, from the innermost.
pub(crate) const MAX_FRAMES: usize = 48;

/// `_URC_NO_REASON` and `_URC_END_OF_STACK` of the unwinder's ABI.
const GO_ON: c_int = 0;
const ENOUGH: c_int = 5;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    // <sys/uio.h>
    fn process_vm_readv(
        pid: c_int,
        to: *const Piece,
        to_count: c_ulong,
        from: *const Piece,
        from_count: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

/// `struct iovec`.
#[repr(C)]
struct Piece {
    start: *mut c_void,
    len: usize,
}

/// What a function leaves on the stack: its caller's frame, and where it returns to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Link {
    caller: usize,
    address: usize,
}

/// Fewer frames than this mean that the chain is broken: by code that was built without frame pointers.
const CHAIN: usize = 4;
/// A stack whose next frame is farther than this is none.
const LARGEST_FRAME: usize = 1 << 20;

/// Addresses as they are found.
pub(crate) struct Frames {
    pub(crate) addresses: [usize; MAX_FRAMES],
    pub(crate) len: usize,
    /// Frames before this one are not wanted: those of a signal's handler.
    from: Option<usize>,
}

impl Frames {
    /// The addresses that were found.
    pub(crate) fn found(&self) -> &[usize] {
        self.addresses.get(..self.len).unwrap_or_default()
    }

    /// The stack of the caller. Allocates nothing and takes no lock that the interrupted code could hold: libgcc looks tables
    /// up with `_dl_find_object`, which is made for signal handlers (glibc 2.35 and later; before, a lock that one thread may
    /// take twice). With `from`, only frames from the one that stands at that address.
    #[inline(never)]
    pub(crate) fn here(from: Option<usize>) -> Self {
        let mut frames = Self { addresses: [0; MAX_FRAMES], len: 0, from };
        let argument: *mut Self = &mut frames;
        // SAFETY: `visit` has the signature that the unwinder's ABI asks for, does not unwind, and is called only before this
        // returns, with the pointer that is handed over here and nobody else uses meanwhile.
        unsafe { _Unwind_Backtrace(visit, argument.cast()) };
        frames
    }

    /// The stack of the caller by its chain of frames, which touches the stack alone: the unwind tables are over a megabyte that
    /// would become resident. Where there is no chain, the same as [`Self::here`].
    #[inline(never)]
    pub(crate) fn chained() -> Self {
        let frames = Self::along(frame_pointer());
        if frames.len < CHAIN { Self::here(None) } else { frames }
    }

    /// The chain that begins at this frame, as far as there is one.
    fn along(mut frame: usize) -> Self {
        let mut frames = Self { addresses: [0; MAX_FRAMES], len: 0, from: None };
        let own = std::process::id();
        while let Some(slot) = frames.addresses.get_mut(frames.len) {
            let Some(link) = link_at(own, frame).filter(|link| link.address > 1) else { break };
            *slot = link.address - 1;
            frames.len += 1;
            // Callers stand above those they call.
            if link.caller <= frame || link.caller - frame > LARGEST_FRAME {
                break;
            }
            frame = link.caller;
        }
        frames
    }
}

/// The frame of the function this is inlined into.
#[inline(always)]
#[expect(clippy::inline_always, reason = "in a frame of its own it would be of no use")]
fn frame_pointer() -> usize {
    let frame: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies one register into another.
    unsafe {
        std::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: copies one register into another.
    unsafe {
        std::arch::asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        frame = 0;
    }
    frame
}

/// Reads a frame by way of the kernel: a register that holds no frame is an error there and not a fault here.
fn link_at(own: u32, frame: usize) -> Option<Link> {
    if frame == 0 || !frame.is_multiple_of(align_of::<Link>()) {
        return None;
    }
    let mut link = Link::default();
    let length = size_of::<Link>();
    let to = Piece { start: (&raw mut link).cast(), len: length };
    let from = Piece { start: std::ptr::without_provenance_mut(frame), len: length };
    // SAFETY: `to` is one piece, that holds `link`, which nobody else uses and which any bytes are a value of; `from` is only
    // looked at by the kernel.
    let read = unsafe { process_vm_readv(own.cast_signed(), &raw const to, 1, &raw const from, 1, 0) };
    (read.cast_unsigned() == length).then_some(link)
}

extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
    // SAFETY: the unwinder hands over its own context, valid during this call.
    let address = unsafe { _Unwind_GetIP(context) };
    // SAFETY: `argument` is the pointer to the `Frames` of `here`, which is waiting for the unwinder and does not touch them.
    let frames = unsafe { &mut *argument.cast::<Frames>() };
    if frames.from.is_some_and(|from| from != address) {
        return GO_ON;
    }
    // The interrupted instruction itself; what stands above it returns to after its call.
    let exact = frames.from.take().is_some();
    let Some(slot) = frames.addresses.get_mut(frames.len) else { return ENOUGH };
    *slot = if exact { address } else { address.saturating_sub(1) };
    frames.len += 1;
    GO_ON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_has_its_callers() {
        #[inline(never)]
        fn inner() -> Frames {
            Frames::here(None)
        }
        #[inline(never)]
        fn chained() -> Frames {
            Frames::chained()
        }
        for frames in [inner(), chained()] {
            assert!(frames.len > 3, "{:x?}", frames.found());
            let names = crate::symbols(frames.found());
            assert!(names.iter().flatten().any(|name| name.contains("a_stack_has_its_callers")), "{names:?}");
        }
    }

    #[test]
    fn a_chain_is_followed_until_it_breaks() {
        let mut stack = [Link::default(); MAX_FRAMES + 8];
        let at = |index: usize, stack: &[Link]| stack.as_ptr() as usize + index * size_of::<Link>();
        for index in 0..stack.len() {
            stack[index] = Link { caller: at(index + 1, &stack), address: 1000 + index };
        }
        let follow = |stack: &[Link]| Frames::along(at(0, stack)).found().to_vec();
        assert_eq!(follow(&stack), (999..).take(MAX_FRAMES).collect::<Vec<_>>());
        // Back, nowhere, and out of all stacks.
        let whole = stack[2].caller;
        for caller in [at(1, &stack), 0, usize::MAX & !15] {
            stack[2].caller = caller;
            assert_eq!(follow(&stack), [999, 1000, 1001], "{caller:x}");
        }
        stack[2].caller = whole;
        // A function that returns to nothing.
        stack[1].address = 0;
        assert_eq!(follow(&stack), [999]);
    }

    #[test]
    fn what_is_no_frame_is_not_read() {
        let own = std::process::id();
        for place in [0, 1, 8, usize::MAX & !15, 1 << 63] {
            assert!(link_at(own, place).is_none(), "{place:x}");
        }
        let frames = [Link { caller: 1, address: 2 }];
        assert!(
            link_at(own, frames.as_ptr() as usize).is_some_and(|link| (link.caller, link.address) == (1, 2))
        );
    }
}
