//! Suggestions for misspelt names.

/// Returns the candidate nearest to `name`, if one is near enough to be the intended name: it differs only in letter
/// case, by at most one edit per four letters (three at most), or it begins with `name`.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer name is not a typing error, and the distance takes quadratic time.
    if name.len() > 64 {
        return None;
    }
    let name: Vec<char> = name.to_lowercase().chars().collect();
    let allowed = (name.len() / 4).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| {
            let letters: Vec<char> = candidate.to_lowercase().chars().collect();
            let goes_on = name.len() > 2 && letters.starts_with(&name);
            let distance = distance(&name, &letters);
            (if goes_on { distance.min(allowed) } else { distance }, candidate)
        })
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Counts insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let width = b.len() + 1;
    let mut rows = vec![0; (a.len() + 1) * width];
    let at = |i: usize, j: usize| i * width + j;
    for i in 0..=a.len() {
        rows[at(i, 0)] = i;
    }
    for j in 0..=b.len() {
        rows[at(0, j)] = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[at(i - 1, j - 1)] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[at(i - 1, j)] + 1).min(rows[at(i, j - 1)] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[at(i - 2, j - 2)] + 1);
            }
            rows[at(i, j)] = least;
        }
    }
    rows[at(a.len(), b.len())]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn typing_errors_are_recognized_and_other_names_are_not() {
        let names = [
            "cores",
            "sockets",
            "threads",
            "terminationGracePeriodSeconds",
            "rng",
            "gpus",
        ];
        for (name, meant) in [
            ("core", Some("cores")),
            ("Cores", Some("cores")),
            ("sockets", Some("sockets")),
            ("scokets", Some("sockets")),
            ("terminationGracePeriod", Some("terminationGracePeriodSeconds")),
            ("termination", Some("terminationGracePeriodSeconds")),
            ("te", None),
            ("terminatonGracePeriodSecond", Some("terminationGracePeriodSeconds")),
            ("gpu", Some("gpus")),
            ("memory", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, names), meant, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(100_000), names), None);
    }
}
