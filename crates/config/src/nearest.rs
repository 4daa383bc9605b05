//! The known name that a mistyped one was probably meant to be.

/// The candidate nearest to `name`, if one is near enough to be worth proposing.
///
/// Case and the separators `-`, `_` and `.` count for nothing, so `cluster-dns` finds `clusterDNS`.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold(name);
    // A longer name may have more slips in it, but never more than a third.
    let limit = (wanted.len() / 3).min(6);
    candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &fold(candidate), limit), candidate))
        .filter(|(distance, _)| *distance <= limit && !wanted.is_empty())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The end of a sentence that proposes the nearest name, or says where the names are listed.
pub(crate) fn suggestion(found: Option<&str>, otherwise: &str) -> String {
    match found {
        Some(found) => format!("did you mean {found:?}?"),
        None => otherwise.to_owned(),
    }
}

fn fold(name: &str) -> Vec<char> {
    // Names are short; a pasted novel is not looked at beyond the length of any real name.
    name.chars().filter(|c| !matches!(c, '-' | '_' | '.')).take(80).flat_map(char::to_lowercase).collect()
}

/// Edits (insert, delete, replace, swap of neighbours) between two names; anything above `limit` may come out larger.
fn distance(a: &[char], b: &[char], limit: usize) -> usize {
    if a.len().abs_diff(b.len()) > limit {
        return limit + 1;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn proposes_the_nearest_only_when_near() {
        let names = ["staticPodPath", "staticPodURL", "clusterDNS", "port", "maxPods"];
        for (typed, found) in [
            ("staticPodPth", Some("staticPodPath")),
            ("cluster-dns", Some("clusterDNS")),
            ("clusterdns", Some("clusterDNS")),
            ("prot", Some("port")),
            ("maxPod", Some("maxPods")),
            ("somethingElse", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(typed, names), found, "{typed}");
        }
    }
}
