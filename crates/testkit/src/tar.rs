//! The few kinds of tar entry that an image needs, written the same way every time so that digests are stable.

use std::io::Write;

/// Collects a POSIX ustar archive in memory; owner 0:0 and time 0 throughout.
#[derive(Debug, Default)]
pub(crate) struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    pub(crate) fn dir(&mut self, name: &str, mode: u32) {
        self.entry(name, b'5', mode, "", &[]);
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, b'0', mode, "", content);
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) {
        self.entry(name, b'2', 0o777, target, &[]);
    }

    /// Ends the archive with its two empty blocks.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }

    fn entry(&mut self, name: &str, kind: u8, mode: u32, target: &str, content: &[u8]) {
        assert!(name.len() <= 100 && target.len() <= 100, "ustar names are limited to 100 bytes: {name}");
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, &format!("{mode:07o}\0"));
        put(108, "0000000\0");
        put(116, "0000000\0");
        put(124, &format!("{:011o}\0", content.len()));
        put(136, "00000000000\0");
        // The checksum counts its own field as spaces.
        put(148, "        ");
        put(157, target);
        put(257, "ustar\x0000");
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        // Writing into a slice of its exact size cannot fail.
        write!(&mut header[148..156], "{sum:06o}\0 ").ok();
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_tar_program_reads_it() {
        let mut tar = Tar::default();
        tar.dir("bin/", 0o755);
        tar.file("bin/tool", 0o755, b"content");
        tar.symlink("bin/alias", "tool");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar");
        std::fs::write(&path, tar.finish()).unwrap();
        let unpacked =
            Command::new("tar").arg("-xf").arg(&path).arg("-C").arg(dir.path()).status().expect("tar runs");
        assert!(unpacked.success());
        assert_eq!(std::fs::read(dir.path().join("bin/alias")).unwrap(), b"content");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(dir.path().join("bin/tool")).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o755);
    }
}
