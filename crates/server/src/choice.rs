//! Which families of metrics are served (`--metrics-allow`, `--metrics-deny`).
//!
//! It is asked once for each family of an answer, never for a sample: what is not served is not written either.

/// Lists of families, each a name, or the beginning of names with `*` behind it. The default serves all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyChoice {
    /// Only these; none is all.
    pub allow: Vec<String>,
    /// And none of these, also if they are allowed.
    pub deny: Vec<String>,
    /// And what upstream has renamed, by its old names as well.
    pub old_names: bool,
}

impl FamilyChoice {
    /// Whether the family is served. A histogram goes by its own name, without `_bucket`.
    pub(crate) fn takes(&self, family: &str) -> bool {
        (self.allow.is_empty() || names(&self.allow, family)) && !names(&self.deny, family)
    }
}

fn names(list: &[String], family: &str) -> bool {
    list.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => family.starts_with(beginning),
        None => family == pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_and_by_beginning() {
        let list = |patterns: &[&str]| patterns.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        for (allow, deny, family, expected) in [
            (&[][..], &[][..], "a_total", true),
            (&["a_total"], &[], "a_total", true),
            (&["a_total"], &[], "a_total_more", false),
            (&["a_*", "b"], &[], "b", true),
            (&["a_*"], &[], "b", false),
            (&[], &["a_*"], "a_total", false),
            (&[], &["a_*"], "a", true),
            (&["a_*"], &["a_total"], "a_total", false),
            (&["a_*"], &["a_total"], "a_other", true),
            (&[], &["*"], "a", false),
        ] {
            let choice = FamilyChoice { allow: list(allow), deny: list(deny), old_names: false };
            assert_eq!(choice.takes(family), expected, "{allow:?} {deny:?} {family}");
        }
    }
}
