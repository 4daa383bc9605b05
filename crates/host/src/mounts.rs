//! The table of mounts.

use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's number.
    pub id: u32,
    /// The number of the mount it lies on.
    pub parent: u32,
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Which directory of the file system is mounted; not `/` for bind mounts.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Options of this mount: `rw`, `noexec` …
    pub options: String,
    /// Propagation: `shared:1`, `master:2` …; empty for private mounts.
    pub propagation: Vec<String>,
    /// The file system's type.
    pub fs_type: String,
    /// What is mounted: a device, a server, or a word.
    pub source: String,
    /// Options of the file system.
    pub super_options: String,
}

/// All mounts of a mount namespace, in the order they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Parses `mountinfo` (see proc(5)); a line that is not understood is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { mounts: text.lines().filter_map(parse_mount).collect() }
    }

    /// Every mount.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// Mounts at `path` or below it.
    pub fn at_or_below<'a>(&'a self, path: &'a Path) -> impl DoubleEndedIterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| mount.mount_point.starts_with(path))
    }

    /// Whether something is mounted at exactly `path`.
    #[must_use]
    pub fn is_mount_point(&self, path: &Path) -> bool {
        self.mounts.iter().any(|mount| mount.mount_point == path)
    }

    /// The mount that `path` lies on: the last one made at the longest mount point above it.
    #[must_use]
    pub fn mount_of(&self, path: &Path) -> Option<&Mount> {
        self.mounts
            .iter()
            .filter(|mount| path.starts_with(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.as_os_str().len())
    }
}

fn parse_mount(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ').filter(|field| !field.is_empty());
    let id = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let root = PathBuf::from(unescape(fields.next()?));
    let mount_point = PathBuf::from(unescape(fields.next()?));
    let options = fields.next()?.to_owned();
    let propagation = fields.by_ref().take_while(|field| *field != "-").map(str::to_owned).collect();
    let fs_type = fields.next()?.to_owned();
    let source = unescape(fields.next().unwrap_or_default());
    let super_options = fields.next().unwrap_or_default().to_owned();
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mount {
        id,
        parent,
        device,
        root,
        mount_point,
        options,
        propagation,
        fs_type,
        source,
        super_options,
    })
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash (`\040`).
pub(crate) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'\\'
            && let Some((octal, after)) = after.split_first_chunk::<3>()
            && let Some(value) =
                std::str::from_utf8(octal).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            bytes.push(value);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
36 22 0:31 / /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/a\\040b rw,relatime shared:2 master:1 - tmpfs tmpfs rw,size=4k
37 22 254:1 /srv/data /mnt/bind ro - ext4 /dev/vda rw
38 37 0:40 / /mnt/bind rw - overlay over\\134lay rw,lowerdir=/x
broken line
39 22 0:41 / /mnt/none rw - tmpfs  rw
";

    #[test]
    fn parses_each_field() {
        let table = MountTable::parse(TABLE);
        assert_eq!(table.iter().count(), 5);
        let tmpfs = table.iter().nth(1).unwrap();
        assert_eq!(
            tmpfs,
            &Mount {
                id: 36,
                parent: 22,
                device: (0, 31),
                root: "/".into(),
                mount_point: "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/a b".into(),
                options: "rw,relatime".to_owned(),
                propagation: vec!["shared:2".to_owned(), "master:1".to_owned()],
                fs_type: "tmpfs".to_owned(),
                source: "tmpfs".to_owned(),
                super_options: "rw,size=4k".to_owned(),
            }
        );
        assert_eq!(table.iter().nth(3).unwrap().source, "over\\lay");
    }

    #[test]
    fn looks_up_paths() {
        let table = MountTable::parse(TABLE);
        assert_eq!(table.at_or_below(Path::new("/var/lib/kubelet/pods/u")).count(), 1);
        assert_eq!(table.at_or_below(Path::new("/var/lib/kubelet/pods/u2")).count(), 0);
        assert!(table.is_mount_point(Path::new("/mnt/bind")));
        assert!(!table.is_mount_point(Path::new("/mnt")));
        assert_eq!(
            table.mount_of(Path::new("/mnt/bind/x")).unwrap().id,
            38,
            "the last one made hides the others"
        );
        assert_eq!(table.mount_of(Path::new("/mnt/bindx")).unwrap().id, 22);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r"a\040b\011c\134d\x\9"), "a b\tc\\d\\x\\9");
        assert_eq!(unescape(r"\303\251\77"), "é\\77");
    }
}
