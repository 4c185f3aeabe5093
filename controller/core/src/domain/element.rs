//! A tree of XML elements that is serialized for libvirt.
//!
//! Names, paths and serial numbers are escaped here and nowhere else, so none of them can become an element.

use quick_xml::{
    Writer,
    events::{BytesEnd, BytesStart, BytesText, Event},
};

use super::problem::DomainProblem;

/// An element with its attributes, and either text or child elements.
#[derive(Clone, Debug)]
pub(super) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    text: Option<String>,
    children: Vec<Self>,
}

impl Element {
    /// Returns an empty element.
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            attributes: Vec::new(),
            text: None,
            children: Vec::new(),
        }
    }

    /// Returns an element with text.
    pub(super) fn text(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            text: Some(text.into()),
            ..Self::new(name)
        }
    }

    /// Adds an attribute.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    /// Adds an attribute if it has a value.
    pub(super) fn with_some<T: Into<String>>(self, name: &'static str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a child element.
    pub(super) fn child(mut self, child: Self) -> Self {
        self.children.push(child);
        self
    }

    /// Adds child elements.
    pub(super) fn children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }

    /// Returns the document with this root element.
    ///
    /// # Errors
    /// If a text has control characters: XML cannot represent most of them, and libvirt and QEMU have no use for the
    /// others.
    pub(super) fn document(&self) -> Result<String, DomainProblem> {
        let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
        self.write(&mut writer)?;
        let mut text = String::from_utf8_lossy(&writer.into_inner()).into_owned();
        text.push('\n');
        Ok(text)
    }

    fn write(&self, writer: &mut Writer<Vec<u8>>) -> Result<(), DomainProblem> {
        let mut start = BytesStart::new(self.name);
        for (name, value) in &self.attributes {
            start.push_attribute((*name, printable(value, || format!("{}/@{name}", self.name))?));
        }
        // Writing into memory cannot fail.
        let mut put = |event: Event<'_>| drop(writer.write_event(event));
        if let Some(text) = &self.text {
            put(Event::Start(start));
            put(Event::Text(BytesText::new(printable(text, || self.name.into())?)));
        } else if self.children.is_empty() {
            put(Event::Empty(start));
            return Ok(());
        } else {
            put(Event::Start(start));
            for child in &self.children {
                child.write(writer)?;
            }
        }
        drop(writer.write_event(Event::End(BytesEnd::new(self.name))));
        Ok(())
    }
}

/// Returns the text if a document can represent it.
fn printable(text: &str, place: impl FnOnce() -> String) -> Result<&str, DomainProblem> {
    let hidden = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    if text.chars().any(hidden) {
        return Err(DomainProblem::ControlCharacters {
            place: place(),
            text: text.chars().take(256).collect(),
        });
    }
    Ok(text)
}
