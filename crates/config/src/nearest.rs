//! The known name that a mistyped one was probably meant to be.

use mainstay_types::edit_distance;

/// The candidate nearest to `name`, if one is near enough to be worth proposing.
///
/// Case and the separators `-`, `_` and `.` count for nothing, so `cluster-dns` finds `clusterDNS`.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold(name);
    // A longer name may have more slips in it, but never more than a third.
    let limit = (wanted.len() / 3).min(6);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(&wanted, &fold(candidate), limit), candidate))
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
