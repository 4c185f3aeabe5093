//! Commands of the documentation, which tests read from its pages and run: page and test cannot differ.

use anyhow::{Context, Result, ensure};

/// Returns the only command of a page that starts with `beginning`.
///
/// The command includes its continuation lines and the lines that it reads as input. The names in `replaced` are
/// replaced by those of a test.
///
/// # Errors
/// If not exactly one command starts like this, or a name does not occur in it.
pub(crate) fn command(page: &str, beginning: &str, replaced: &[(&str, &str)]) -> Result<String> {
    let mut begun = page
        .lines()
        .enumerate()
        .filter(|(_, line)| line.trim_start().starts_with(beginning));
    let (at, first) = begun
        .next()
        .with_context(|| format!("no command begins with {beginning:?}"))?;
    ensure!(begun.next().is_none(), "several commands begin with {beginning:?}");
    let indentation = first.len() - first.trim_start().len();
    let mut text = String::new();
    let mut input_end = None;
    for line in page
        .lines()
        .skip(at)
        .map(|line| line.get(indentation..).unwrap_or(line))
    {
        text.push_str(line);
        text.push('\n');
        input_end = input_end.or_else(|| {
            let (_, delimiter) = line.split_once("<<")?;
            Some(delimiter.trim_matches('\'').to_owned())
        });
        let is_last = match &input_end {
            Some(delimiter) => line == delimiter,
            None => !line.ends_with('\\'),
        };
        if is_last {
            break;
        }
    }
    for (name, other) in replaced {
        ensure!(text.contains(name), "{name:?} is not in {text}");
        text = text.replace(name, other);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "Text.\n\n   ```sh\n   kubectl drain web \\\n     --force   # a comment\n   kubectl get web\n   kubectl get vm\n   \
                        kubectl create -f - <<'EOF'\n   name: web\n   EOF\n   ```\n";

    #[test]
    fn command_of_a_page_has_all_lines_and_other_names() -> Result<()> {
        for (beginning, expected) in [
            ("kubectl drain", "kubectl drain own \\\n  --force   # a comment\n"),
            ("kubectl get web", "kubectl get own\n"),
            ("kubectl create", "kubectl create -f - <<'EOF'\nname: own\nEOF\n"),
        ] {
            assert_eq!(command(PAGE, beginning, &[("web", "own")])?, expected);
        }
        Ok(())
    }

    #[test]
    fn command_that_a_page_lacks_is_an_error() {
        for (beginning, name) in [
            ("kubectl delete", "web"),
            ("kubectl get", "web"),
            ("kubectl get vm", "web"),
        ] {
            assert!(command(PAGE, beginning, &[(name, "own")]).is_err(), "{beginning}");
        }
    }
}
