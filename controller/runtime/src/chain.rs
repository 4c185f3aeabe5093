//! Formats an error and its causes on one line, without repetition.

use std::{error::Error, fmt};

/// Returns a value that displays `error` and its sources: `outer: cause: cause of the cause`.
///
/// # Guarantees
/// Nothing is repeated. Our own errors never include the text of their source, but those of kube do (`failed to list:
/// ApiError: not found (Status { .. })`). The text of an error is therefore cut where it quotes its source; the source
/// follows next.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

/// The result of [`chain`]; implements [`fmt::Display`].
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = self.0;
        let mut text = error.to_string();
        let mut written = false;
        loop {
            let source = error.source();
            let source_text = source.map(ToString::to_string).unwrap_or_default();
            let own = match text.find(source_text.as_str()) {
                Some(quoted) if !source_text.is_empty() => text[..quoted].trim_end_matches([':', ' ']),
                _ => text.as_str(),
            };
            if !own.is_empty() {
                if written {
                    f.write_str(": ")?;
                }
                // The log is line-based; a multi-line cause would break it.
                f.write_str(&own.replace('\n', " "))?;
                written = true;
            }
            match source {
                Some(next) => (error, text) = (next, source_text),
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::chain;
    use kube::core::Status;

    #[derive(Debug, thiserror::Error)]
    enum Ours {
        #[error("could not read the configuration")]
        Read(#[source] std::io::Error),
        #[error(transparent)]
        Same(std::io::Error),
        #[error("listing: {0} (gave up)")]
        Quotes(#[source] kube::Error),
    }

    fn missing() -> std::io::Error {
        std::io::Error::other("no such\nplace")
    }

    #[test]
    fn error_chain_shows_the_cause_after_the_error() {
        let shown = chain(&Ours::Read(missing())).to_string();
        assert_eq!(shown, "could not read the configuration: no such place");
    }

    #[test]
    fn transparent_error_appears_once() {
        assert_eq!(chain(&Ours::Same(missing())).to_string(), "no such place");
    }

    #[test]
    fn error_text_quoted_from_the_source_is_not_repeated() {
        let status = Status::failure("nodes \"n1\" not found", "NotFound").with_code(404);
        let error = Ours::Quotes(kube::Error::Api(Box::new(status)));
        assert_eq!(
            chain(&error).to_string(),
            "listing: ApiError: nodes \"n1\" not found: NotFound"
        );
    }
}
