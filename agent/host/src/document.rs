//! Reading libvirt's XML within bounds.
//!
//! The documents come from a daemon that may be broken or, inside a guest's pod, hostile. Size,
//! number of nodes, length of lists and of names are limited, so that what comes out is bounded
//! whatever goes in.

use roxmltree::{Document, Node, ParsingOptions};
use thiserror::Error;

/// Largest document. libvirt itself refuses answers over 32 MiB; a real one has 150 KiB.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Most nodes (elements, texts, comments) of a document.
const MAX_NODES: u32 = 400_000;

/// Longest list: a real machine has up to 300 models, 400 features, 300 machine types.
pub const MAX_LIST: usize = 4096;

/// Longest name or number. Kubernetes ends label names at 63.
pub const MAX_NAME: usize = 256;

/// Why a document was not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// More bytes than any real one has.
    #[error("{bytes} bytes of {document}, more than {MAX_BYTES}")]
    TooLarge {
        /// Which document.
        document: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// Not XML, or more nodes than any real one has.
    #[error("not understood as {document}: {message}")]
    NotXml {
        /// Which document.
        document: &'static str,
        /// What the parser says, with the position.
        message: String,
    },
    /// Another document than was asked for.
    #[error("<{found}> instead of <{expected}> as {document}")]
    WrongRoot {
        /// Which document.
        document: &'static str,
        /// The root element it should have.
        expected: &'static str,
        /// The root element it has.
        found: String,
    },
    /// A list longer than any real one.
    #[error("more than {MAX_LIST} elements <{element}> in {document}")]
    TooMany {
        /// Which document.
        document: &'static str,
        /// Elements of the list.
        element: &'static str,
    },
    /// A name longer than any real one.
    #[error("{bytes} bytes in an element <{element}> of {document}, more than {MAX_NAME}")]
    TooLong {
        /// Which document.
        document: &'static str,
        /// The element.
        element: &'static str,
        /// Length of its text.
        bytes: usize,
    },
}

/// A document that is being read: its name goes into errors.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    document: &'static str,
}

impl Reading {
    /// Parses `text`, whose root must be `root`, and gives its root element to `read`.
    pub(crate) fn parse<T>(
        document: &'static str,
        root: &'static str,
        text: &str,
        read: impl FnOnce(Self, Node<'_, '_>) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        if text.len() > MAX_BYTES {
            return Err(ParseError::TooLarge {
                document,
                bytes: text.len(),
            });
        }
        let options = ParsingOptions {
            allow_dtd: false,
            nodes_limit: MAX_NODES,
            ..ParsingOptions::default()
        };
        let tree = Document::parse_with_options(text, options).map_err(|error| ParseError::NotXml {
            document,
            message: clipped(&error.to_string()),
        })?;
        let element = tree.root_element();
        if !element.has_tag_name(root) {
            let found = clipped(element.tag_name().name());
            return Err(ParseError::WrongRoot {
                document,
                expected: root,
                found,
            });
        }
        read(Self { document }, element)
    }

    /// A name within bounds, trimmed. `element` says whose, for the error.
    pub(crate) fn name(self, element: &'static str, text: &str) -> Result<String, ParseError> {
        let text = text.trim();
        if text.len() > MAX_NAME {
            return Err(ParseError::TooLong {
                document: self.document,
                element,
                bytes: text.len(),
            });
        }
        Ok(text.to_owned())
    }

    /// The text of an element; empty if there is none.
    pub(crate) fn text_of(self, element: &'static str, node: Node<'_, '_>) -> Result<String, ParseError> {
        self.name(element, node.text().unwrap_or(""))
    }

    /// An attribute, if it is there and not blank.
    pub(crate) fn attribute(
        self,
        element: &'static str,
        node: Node<'_, '_>,
        name: &str,
    ) -> Result<Option<String>, ParseError> {
        let value = node
            .attribute(name)
            .map(|value| self.name(element, value))
            .transpose()?;
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// Adds to a list within bounds.
    pub(crate) fn push<T>(self, element: &'static str, list: &mut Vec<T>, item: T) -> Result<(), ParseError> {
        if list.len() >= MAX_LIST {
            return Err(self.too_many(element));
        }
        list.push(item);
        Ok(())
    }

    /// The error for a list that is longer than any real one.
    pub(crate) fn too_many(self, element: &'static str) -> ParseError {
        ParseError::TooMany {
            document: self.document,
            element,
        }
    }
}

/// The first child element of this name.
pub(crate) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// All child elements of this name.
pub(crate) fn children<'a, 'input: 'a>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

/// A text for an error message, shortened if it is long.
fn clipped(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, ParseError> {
        Reading::parse("the test", "a", text, |reading, node| reading.text_of("a", node))
    }

    #[test]
    fn errors_name_the_document_and_the_element() {
        assert_eq!(parse("<a> x </a>"), Ok("x".into()));
        for (text, message) in [
            ("<b/>".to_owned(), "<b> instead of <a> as the test".to_owned()),
            (
                format!("<a>{}</a>", "x".repeat(MAX_NAME + 1)),
                format!(
                    "{} bytes in an element <a> of the test, more than {MAX_NAME}",
                    MAX_NAME + 1
                ),
            ),
            (
                " ".repeat(MAX_BYTES + 1),
                format!("{} bytes of the test, more than {MAX_BYTES}", MAX_BYTES + 1),
            ),
        ] {
            assert_eq!(parse(&text).map_err(|error| error.to_string()), Err(message));
        }
        let Err(ParseError::NotXml { message, .. }) = parse("<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>") else {
            panic!("a document type definition is refused")
        };
        assert!(message.contains("DTD"), "{message}");
    }

    #[test]
    fn nodes_are_limited() {
        let many = format!("<a>{}</a>", "<b/>".repeat(MAX_NODES as usize));
        assert!(matches!(parse(&many), Err(ParseError::NotXml { .. })));
    }
}
