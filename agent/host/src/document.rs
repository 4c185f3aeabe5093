//! Parser for libvirt's XML documents, with limits.
//!
//! The documents come from a daemon that may be broken or, inside a guest's pod, hostile. The size, the number of
//! nodes, and the lengths of lists and names are limited, so the result is bounded for any input.

use roxmltree::{Document, Node, ParsingOptions};
use thiserror::Error;

/// Maximum size of a document in bytes. libvirt itself refuses responses over 32 MiB; a real document has 150 KiB.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Maximum number of nodes (elements, texts, comments) in a document.
const MAX_NODES: u32 = 400_000;

/// Maximum length of a list. A real machine has up to 300 models, 400 features and 300 machine types.
pub const MAX_LIST: usize = 4096;

/// Maximum length of a name or number in bytes. Kubernetes limits label names to 63 characters.
pub const MAX_NAME: usize = 256;

/// Reason why a document could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The document has more bytes than any real document.
    #[error("{bytes} bytes of {document} exceed the maximum of {MAX_BYTES}")]
    TooLarge {
        /// The kind of document.
        document: &'static str,
        /// Size of the document in bytes.
        bytes: usize,
    },
    /// The text is not XML, or has more nodes than any real document.
    #[error("{document} cannot be parsed: {message}")]
    NotXml {
        /// The kind of document.
        document: &'static str,
        /// Message of the parser, with the position.
        message: String,
    },
    /// The document is of another kind than expected.
    #[error("the root element of {document} is <{found}> instead of <{expected}>")]
    WrongRoot {
        /// The kind of document.
        document: &'static str,
        /// Name of the expected root element.
        expected: &'static str,
        /// Name of the actual root element.
        found: String,
    },
    /// A list is longer than any real list.
    #[error("more than {MAX_LIST} <{element}> elements in {document}")]
    TooMany {
        /// The kind of document.
        document: &'static str,
        /// Name of the list's elements.
        element: &'static str,
    },
    /// A name is longer than any real name.
    #[error("{bytes} bytes in a <{element}> element of {document} exceed the maximum of {MAX_NAME}")]
    TooLong {
        /// The kind of document.
        document: &'static str,
        /// Name of the element.
        element: &'static str,
        /// Length of the element's text in bytes.
        bytes: usize,
    },
}

/// A document that is being parsed. Error messages contain its name.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    document: &'static str,
}

impl Reading {
    /// Parses `text`, whose root must be `root`, and passes the root element to `read`.
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

    /// Returns the trimmed text if its length is within bounds. `element` names the element in the error.
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

    /// Returns the text of an element, which may be empty.
    pub(crate) fn text_of(self, element: &'static str, node: Node<'_, '_>) -> Result<String, ParseError> {
        self.name(element, node.text().unwrap_or(""))
    }

    /// Returns the value of an attribute; `None` if it is missing or blank.
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

    /// Appends an item to a list if the length stays within bounds.
    pub(crate) fn push<T>(self, element: &'static str, list: &mut Vec<T>, item: T) -> Result<(), ParseError> {
        if list.len() >= MAX_LIST {
            return Err(self.too_many(element));
        }
        list.push(item);
        Ok(())
    }

    /// Returns the error for a list that is longer than any real list.
    pub(crate) fn too_many(self, element: &'static str) -> ParseError {
        ParseError::TooMany {
            document: self.document,
            element,
        }
    }
}

/// Returns the first child element with this name.
pub(crate) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// Returns all child elements with this name.
pub(crate) fn children<'a, 'input: 'a>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

/// Shortens a text for an error message.
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
            (
                "<b/>".to_owned(),
                "the root element of the test is <b> instead of <a>".to_owned(),
            ),
            (
                format!("<a>{}</a>", "x".repeat(MAX_NAME + 1)),
                format!(
                    "{} bytes in a <a> element of the test exceed the maximum of {MAX_NAME}",
                    MAX_NAME + 1
                ),
            ),
            (
                " ".repeat(MAX_BYTES + 1),
                format!("{} bytes of the test exceed the maximum of {MAX_BYTES}", MAX_BYTES + 1),
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
