//! What `docs/metrics.md` says of differences, as the comparison heeds it.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// The names of families that `docs/metrics.md` names in the first columns of its tables of differences.
#[derive(Clone, Debug, Default)]
pub struct Documented {
    /// Upstream's that are not served; a name, or the beginning of one with `*` behind it.
    absent: Vec<String>,
    /// Those whose series or values differ.
    differing: Vec<String>,
}

impl Documented {
    /// The section that names upstream's families that are not served.
    pub const HEADING: &str = "## Families of upstream's that are not served";
    const DIFFERENCES: &str = "## What differs from upstream on purpose";

    /// Reads the page.
    ///
    /// # Errors
    /// When it cannot be read, or names nothing.
    pub fn read(root: &Path) -> Result<Self> {
        let text = fs::read_to_string(root.join("docs/metrics.md")).context("docs/metrics.md")?;
        let documented = Self::of(&text);
        ensure!(!documented.absent.is_empty() && !documented.differing.is_empty(), "the page names nothing");
        Ok(documented)
    }

    pub(super) fn of(page: &str) -> Self {
        let absent = first_columns(page, Self::HEADING).flat_map(names).collect();
        // What is said of the machine's series alone is not said of a container's.
        let differing = first_columns(page, Self::DIFFERENCES).filter(|column| !column.contains(" of `/`"));
        Self { absent, differing: differing.flat_map(names).collect() }
    }

    /// Whether a family of upstream's is named as one that is not served.
    #[must_use]
    pub fn is_absent(&self, family: &str) -> bool {
        self.absent.iter().any(|name| fits(name, family))
    }

    /// Whether the series or values of a family are named as other than upstream's.
    #[must_use]
    pub fn is_different(&self, family: &str) -> bool {
        self.differing.iter().any(|name| fits(name, family))
    }
}

/// The first cells of the rows of a section's tables.
fn first_columns<'a>(page: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let section = page.split_once(heading).map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |").map(|(first, _)| first))
}

/// What stands between backticks and may be the name of a family.
fn names(cell: &str) -> Vec<String> {
    let words = cell.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'*');
    words.filter(is_name).map(str::to_owned).collect()
}

fn fits(name: &str, family: &str) -> bool {
    match name.strip_suffix('*') {
        Some(start) => family.starts_with(start),
        None => name == family,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_read_by_their_headings() {
        let page = format!(
            "## What differs from upstream on purpose\n| where | x |\n| --- | --- |\n| `a_total` | `no` |\n| `r_*` of `/` | x |\n\
             | `b`, `c` | x |\n\n{}\n| `d_*` | x |\n\n## Else\n| `e` | x |\n",
            Documented::HEADING
        );
        let found = Documented::of(&page);
        assert_eq!(
            (found.absent, found.differing),
            (vec!["d_*".to_owned()], vec!["a_total".into(), "b".into(), "c".into()])
        );
    }

    #[test]
    fn a_star_stands_for_any_end() {
        for (name, family, expected) in
            [("a_*", "a_b", true), ("a_*", "a", false), ("a", "a", true), ("a", "a_b", false)]
        {
            assert_eq!(fits(name, family), expected, "{name} {family}");
        }
    }
}
