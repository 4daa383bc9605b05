//! The atomic writer: all files of a volume change at once, or none does. The layout is upstream's (its
//! `pkg/volume/util/atomic_writer.go`), because programs watch for it:
//!
//! ```text
//! <vol>/..2026_01_31_15_04_05.123456789/   the files
//! <vol>/..data -> ..2026_01_31_15_04_05.123456789
//! <vol>/<first part> -> ..data/<first part>
//! ```

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{Read, Write as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use mainstay_podspec::volumes::{MAX_PATH_PARTS, Payload, PayloadFile};
use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use tracing::debug;

use crate::{
    VolumeError,
    files::{open_beneath, open_directory, open_to_read},
    setup::{GROUP_DIRECTORY, mode},
};

const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";
/// What a file that belongs to an fsGroup has beside its own mode; containers see these volumes read-only.
const GROUP_FILE: u32 = 0o440;

/// Makes the files of a volume be these; whether anything was written. `group` owns them, if given.
pub(crate) fn write(root: &Path, files: &Payload, group: Option<u32>) -> Result<bool, VolumeError> {
    let volume = Volume { root, directory: open_directory(root)?, group };
    let current = volume.current()?;
    let fresh = match &current {
        Some(current) => !volume.holds(current, files)?,
        None => true,
    };
    let current = if fresh {
        let next = volume.write_generation(files)?;
        volume.publish(&next)?;
        next
    } else {
        current.unwrap_or_default()
    };
    volume.link(files)?;
    volume.tidy(files, &current)?;
    Ok(fresh)
}

struct Volume<'a> {
    root: &'a Path,
    directory: OwnedFd,
    group: Option<u32>,
}

impl Volume<'_> {
    fn failed(&self, action: &'static str, name: &str) -> impl FnOnce(Errno) -> VolumeError {
        VolumeError::io(action, self.root.join(name))
    }

    /// The directory that `..data` names, if it is one of ours.
    fn current(&self) -> Result<Option<String>, VolumeError> {
        match rustix::fs::readlinkat(&self.directory, DATA, Vec::new()) {
            Ok(target) => {
                let target = target.to_string_lossy().into_owned();
                Ok(Some(target).filter(|target| target.starts_with("..") && !target.contains('/')))
            }
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(self.failed("read", DATA)(errno)),
        }
    }

    /// Whether a directory holds exactly these files.
    fn holds(&self, generation: &str, files: &Payload) -> Result<bool, VolumeError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match rustix::fs::openat(&self.directory, generation, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(self.failed("open", generation)(errno)),
        };
        for (path, file) in files {
            if !self.is_same(&directory, path, file).unwrap_or(false) {
                return Ok(false);
            }
        }
        // What can be read but not told apart is written anew.
        Ok(count_files(&directory).is_ok_and(|count| count == files.len()))
    }

    fn is_same(&self, directory: &OwnedFd, path: &str, file: &PayloadFile) -> std::io::Result<bool> {
        let found = open_beneath(directory, None, path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&found)?;
        let right = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_mode & 0o7777 == self.file_mode(file)
            && stat.st_uid == file.owner.unwrap_or_else(our_user)
            && self.group.is_none_or(|group| stat.st_gid == group)
            && usize::try_from(stat.st_size).is_ok_and(|size| size == file.contents.bytes().len());
        if !right {
            return Ok(false);
        }
        reads_as(&mut open_to_read(&found)?, file.contents.bytes())
    }

    fn file_mode(&self, file: &PayloadFile) -> u32 {
        if self.group.is_some() { file.mode | GROUP_FILE } else { file.mode }
    }

    /// Writes all files into a new directory and returns its name.
    fn write_generation(&self, files: &Payload) -> Result<String, VolumeError> {
        let name = loop {
            let name = generation_name();
            match rustix::fs::mkdirat(&self.directory, &name, mode(0o755)) {
                Ok(()) => break name,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed("make the directory", &name)(errno)),
            }
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.directory, &name, flags, Mode::empty())
            .map_err(self.failed("open", &name))?;
        let written = self
            .finish_directory(&directory, &name)
            .and_then(|()| files.iter().try_for_each(|(path, file)| self.write_file(&directory, path, file)));
        if let Err(error) = written {
            // Half a generation is of use to nobody, and on a full disk every try would leave one.
            drop(directory);
            if let Err(left) = mainstay_host::remove_dir_all_one_fs(&self.root.join(&name)) {
                tracing::debug!(error = %left, "cannot remove what a failed write left");
            }
            return Err(error);
        }
        Ok(name)
    }

    fn finish_directory(&self, directory: impl AsFd, name: &str) -> Result<(), VolumeError> {
        let mut bits = 0o755;
        if let Some(group) = self.group {
            rustix::fs::fchown(&directory, None, Some(Gid::from_raw(group)))
                .map_err(self.failed("change the group of", name))?;
            bits |= GROUP_DIRECTORY;
        }
        rustix::fs::fchmod(&directory, mode(bits)).map_err(self.failed("set the mode of", name))
    }

    fn write_file(&self, top: &OwnedFd, path: &str, file: &PayloadFile) -> Result<(), VolumeError> {
        let failed = |action| self.failed(action, path);
        let mut parts: Vec<_> = path.split('/').collect();
        let Some(name) = parts.pop() else { return Ok(()) };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = rustix::fs::openat(top, ".", flags, Mode::empty()).map_err(failed("open"))?;
        for part in parts {
            let made = match rustix::fs::mkdirat(&directory, part, mode(0o755)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(failed("make the directory of")(errno)),
            };
            directory = rustix::fs::openat(&directory, part, flags, Mode::empty()).map_err(failed("open"))?;
            if made {
                self.finish_directory(&directory, path)?;
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut opened =
            File::from(rustix::fs::openat(&directory, name, flags, mode(0o600)).map_err(failed("make"))?);
        opened.write_all(file.contents.bytes()).map_err(|source| VolumeError::Io {
            action: "write",
            path: self.root.join(path),
            source,
        })?;
        let (owner, group) = (file.owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
        if owner.is_some() || group.is_some() {
            rustix::fs::fchown(&opened, owner, group).map_err(failed("change the owner of"))?;
        }
        rustix::fs::fchmod(&opened, mode(self.file_mode(file))).map_err(failed("set the mode of"))
    }

    /// Puts a directory in the place of the current one, for every reader at once.
    fn publish(&self, generation: &str) -> Result<(), VolumeError> {
        match rustix::fs::unlinkat(&self.directory, DATA_NEXT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(self.failed("remove", DATA_NEXT)(errno)),
        }
        rustix::fs::symlinkat(generation, &self.directory, DATA_NEXT)
            .map_err(self.failed("make the link", DATA_NEXT))?;
        rustix::fs::renameat(&self.directory, DATA_NEXT, &self.directory, DATA)
            .map_err(self.failed("swap", DATA))
    }

    /// Makes what users see: links into `..data`.
    fn link(&self, files: &Payload) -> Result<(), VolumeError> {
        for first in first_parts(files) {
            let target = format!("{DATA}/{first}");
            match rustix::fs::symlinkat(&target, &self.directory, first) {
                Ok(()) => {}
                // Whatever stands there is what users see; if it is not ours, it was mounted or made on purpose.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed("make the link", first)(errno)),
            }
        }
        Ok(())
    }

    /// Removes links to files that are no more, and directories of earlier generations, whoever left them.
    fn tidy(&self, files: &Payload, current: &str) -> Result<(), VolumeError> {
        let wanted = first_parts(files);
        let entries = Dir::read_from(&self.directory).map_err(self.failed("list", ""))?;
        for entry in entries {
            let entry = entry.map_err(self.failed("list", ""))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_string_lossy().into_owned();
            if name == "." || name == ".." || name == DATA || name == current {
                continue;
            }
            let is_link = rustix::fs::readlinkat(&self.directory, name.as_str(), Vec::new());
            match is_link {
                Ok(target) => {
                    let ours = target.to_bytes() == format!("{DATA}/{name}").as_bytes();
                    if ours && !wanted.contains(name.as_str()) {
                        rustix::fs::unlinkat(&self.directory, name.as_str(), AtFlags::empty())
                            .map_err(self.failed("remove", &name))?;
                    }
                }
                Err(_) if name.starts_with("..2") => {
                    if let Err(error) = mainstay_host::remove_dir_all_one_fs(&self.root.join(&name)) {
                        debug!(%error, "cannot remove an earlier generation of a volume's files");
                    }
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Whether this, to its end, is what can be read. Nothing is kept of it: most volumes are looked at again and again and
/// have not changed.
fn reads_as(file: &mut impl Read, mut expected: &[u8]) -> std::io::Result<bool> {
    let mut buffer = [0; 8192];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(expected.is_empty()),
            Ok(length) => match buffer.get(..length).and_then(|read| expected.strip_prefix(read)) {
                Some(rest) => expected = rest,
                None => return Ok(false),
            },
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whose a file is that nobody is named for.
fn our_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn first_parts(files: &Payload) -> BTreeSet<&str> {
    files.keys().filter_map(|path| path.split('/').next()).collect()
}

/// How many files there are in a tree; an error if it is deeper than any that is written here. Threads that fill volumes have small
/// stacks, so the way down is on the heap.
fn count_files(directory: &OwnedFd) -> Result<usize, Errno> {
    let mut count = 0;
    let mut way = vec![Dir::read_from(directory)?];
    while let Some(current) = way.last_mut() {
        let Some(entry) = current.read() else {
            way.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(current.fd()?, name, flags, Mode::empty()) {
            Ok(_) if way.len() > MAX_PATH_PARTS => return Err(Errno::LOOP),
            Ok(below) => way.push(Dir::new(below)?),
            Err(Errno::NOTDIR | Errno::LOOP) => count += 1,
            Err(errno) => return Err(errno),
        }
    }
    Ok(count)
}

/// `..2026_01_31_15_04_05.123456789`: the time in UTC and a random number.
fn generation_name() -> String {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) & 0xffff_ffff;
    format!("..{}.{random}", jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S"))
}

#[cfg(test)]
mod tests;
