//! `/etc/subuid` and `/etc/subgid`: IDs that a user may give away.

use std::path::Path;

/// The first range of IDs that the file gives to a user: where it begins and how long it is. `None` when it gives none.
#[must_use]
pub fn subordinate_ids(file: &Path, user: &str) -> Option<(u32, u32)> {
    parse(&std::fs::read_to_string(file).ok()?, user)
}

pub(crate) fn parse(text: &str, user: &str) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let number = |name: Option<&str>| name?.parse().ok();
        (fields.next() == Some(user)).then_some(())?;
        Some((number(fields.next())?, number(fields.next())?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_good_range_of_the_user_counts() {
        let dir = std::env::temp_dir().join(format!("mainstay-subid-{}", std::process::id()));
        std::fs::write(&dir, "# x\nroot:1:2\nkubelet:a:b\nkubelet:65536:131072\nkubelet:1:1\n").unwrap();
        assert_eq!(subordinate_ids(&dir, "kubelet"), Some((65536, 131072)));
        assert_eq!(subordinate_ids(&dir, "nobody"), None);
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(subordinate_ids(&dir, "kubelet"), None);
    }
}
