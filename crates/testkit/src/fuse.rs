//! A file system that never answers: a disk that has died, or a server that is gone.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

/// The kernel's number of the question that a new file system must answer.
const INIT: u32 = 26;
/// Where a question's number, and its serial, are.
const HEADER: usize = 40;
/// Room for any question that this one agrees to.
const ROOM: usize = 1 << 17;
/// How often it is looked whether it is to end.
const PAUSE: Duration = Duration::from_millis(20);

/// A mounted file system that says that it is there, and never another word. Whoever asks it anything hangs in the kernel until this is
/// dropped; then all of them are told that it is gone, and it is unmounted.
#[derive(Debug)]
pub struct HungFilesystem {
    path: PathBuf,
    end: Arc<AtomicBool>,
    unanswered: Arc<AtomicU64>,
    server: Option<JoinHandle<()>>,
}

impl HungFilesystem {
    /// Mounts it over a directory.
    ///
    /// # Errors
    /// Without root, or without FUSE in the kernel.
    pub fn mount(path: impl Into<PathBuf>) -> Result<Self> {
        Self::mount_as("mainstay-hung", path)
    }

    /// The same under a name of its own: one that begins with `/dev/` is a disk of the machine's for whoever looks.
    ///
    /// # Errors
    /// The same.
    pub fn mount_as(source: &str, path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open("/dev/fuse")
            .context("cannot open /dev/fuse; does the kernel have FUSE?")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
        let options = std::ffi::CString::from_vec_with_nul(options.into_bytes())?;
        mount(source, &path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
            .with_context(|| format!("cannot mount over {}", path.display()))?;
        let (end, unanswered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told, counted) = (Arc::clone(&end), Arc::clone(&unanswered));
        let server = std::thread::spawn(move || serve(device, &told, &counted));
        Ok(Self { path, end, unanswered, server: Some(server) })
    }

    /// How many questions wait for an answer.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Gives the calling thread, and whatever it starts from now on, mounts of its own: nobody else on the machine sees what is
/// mounted then.
///
/// # Errors
/// Without root.
pub fn own_mounts() -> Result<()> {
    #[expect(deprecated, reason = "the other one is unsafe for flags that are not given here")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).context("cannot have own mounts")?;
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).context("cannot keep mounts to ourselves")
}

/// Answers the first question and collects the others. With the end of the device the kernel answers all of them.
fn serve(mut device: File, end: &AtomicBool, unanswered: &AtomicU64) {
    let mut question = vec![0; ROOM];
    while !end.load(Ordering::Relaxed) {
        match device.read(&mut question) {
            Ok(length) if length >= HEADER => {
                let number = |at: usize| {
                    let bytes = question.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                    u32::from_ne_bytes(bytes.unwrap_or_default())
                };
                if number(4) == INIT {
                    let serial: [u8; 8] =
                        question.get(8..16).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
                    // Nobody can be told that this failed but by the hanging of what should not hang yet.
                    device.write_all(&init_answer(serial)).ok();
                } else {
                    unanswered.fetch_add(1, Ordering::Relaxed);
                }
            }
            // Unmounted by somebody else.
            Err(error) if error.raw_os_error() == Some(19) => return,
            Ok(_) | Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// `fuse_out_header` and `fuse_init_out` of version 7.31.
fn init_answer(serial: [u8; 8]) -> Vec<u8> {
    const LENGTH: u32 = 16 + 64;
    let mut answer = Vec::with_capacity(LENGTH as usize);
    answer.extend(LENGTH.to_ne_bytes());
    answer.extend(0_i32.to_ne_bytes());
    answer.extend(serial);
    answer.extend(7_u32.to_ne_bytes());
    answer.extend(31_u32.to_ne_bytes());
    // Read ahead, features, requests in the background, when they are many.
    answer.extend([0; 8]);
    answer.extend(16_u16.to_ne_bytes());
    answer.extend(12_u16.to_ne_bytes());
    // The largest write, how fine times are, pages of a request.
    answer.extend(4096_u32.to_ne_bytes());
    answer.extend(1_u32.to_ne_bytes());
    answer.resize(LENGTH as usize, 0);
    answer
}

impl Drop for HungFilesystem {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            // It closes the device: whoever waits hears that nobody is there.
            server.join().ok();
        }
        // Whoever still has something of it open keeps that. Somebody else may have unmounted it.
        unmount(&self.path, UnmountFlags::DETACH).ok();
    }
}
