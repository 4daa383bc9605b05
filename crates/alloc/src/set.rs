//! Sets of CPUs, as text in the kernel's list syntax.

use std::{
    collections::BTreeSet,
    fmt,
    ops::{BitAnd, BitOr, Sub},
    str::FromStr,
};

/// CPUs by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is no set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a list of CPUs; write numbers and ranges separated by commas, such as 0,4-7")]
pub struct CpuSetError {
    text: String,
}

/// Beyond any machine, so that a range in a file cannot fill the memory.
const MAX_CPU: u32 = 1 << 16;

impl CpuSet {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is in there.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl BitOr for &CpuSet {
    type Output = CpuSet;

    fn bitor(self, other: Self) -> CpuSet {
        CpuSet(&self.0 | &other.0)
    }
}

impl BitAnd for &CpuSet {
    type Output = CpuSet;

    fn bitand(self, other: Self) -> CpuSet {
        CpuSet(&self.0 & &other.0)
    }
}

impl Sub for &CpuSet {
    type Output = CpuSet;

    fn sub(self, other: Self) -> CpuSet {
        CpuSet(&self.0 - &other.0)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let wrong = || CpuSetError { text: text.to_owned() };
        let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < MAX_CPU).ok_or_else(wrong);
        let mut cpus = BTreeSet::new();
        if text.is_empty() {
            return Ok(Self(cpus));
        }
        for part in text.split(',') {
            match part.split_once('-') {
                None => {
                    cpus.insert(number(part)?);
                }
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(wrong());
                    }
                    cpus.extend(first..=last);
                }
            }
        }
        Ok(Self(cpus))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_and_back() {
        for (text, same) in [("", ""), ("0", "0"), ("0,1", "0-1"), ("3-4,1,7-9", "1,3-4,7-9"), ("5-5", "5")] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), same);
        }
        for text in [",", "1,", "a", "2-1", "-", "1-", "0-4294967295", " 1", "1 "] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_set_survives(cpus in proptest::collection::btree_set(0_u32..300, 0..100)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
