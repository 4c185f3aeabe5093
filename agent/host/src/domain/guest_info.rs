//! What a guest's agent says of its guest: names and numbers from inside, true only as far as the guest
//! is honest.

use std::collections::BTreeMap;

use crate::document::MAX_LIST;

/// One of libvirt's typed parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, such as `if.0.addr.1.addr`.
    pub name: String,
    /// Its value.
    pub value: ParameterValue,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterValue {
    /// Any of libvirt's whole numbers, and truth as 0 and 1.
    Number(i128),
    /// A text, at most 256 characters of it.
    Text(String),
    /// Something that is of no interest.
    Other,
}

/// What the guest's agent says, as far as it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestInfo {
    /// The guest's operating system.
    pub os: GuestOs,
    /// Its interfaces.
    pub interfaces: Vec<GuestInterface>,
}

/// Operating system of a guest, in the words of its `os-release`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestOs {
    /// `ID`: `debian`, `mswindows`.
    pub id: Option<String>,
    /// `NAME`.
    pub name: Option<String>,
    /// `PRETTY_NAME`.
    pub pretty_name: Option<String>,
    /// `VERSION`.
    pub version: Option<String>,
    /// `VERSION_ID`.
    pub version_id: Option<String>,
    /// Release of the kernel.
    pub kernel_release: Option<String>,
    /// Version of the kernel.
    pub kernel_version: Option<String>,
    /// Architecture of the hardware.
    pub machine: Option<String>,
}

/// An interface of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestInterface {
    /// Its name in the guest.
    pub name: String,
    /// Its MAC address; empty if it has none.
    pub mac: String,
}

impl GuestInfo {
    /// Reads libvirt's parameters. What has another type than libvirt documents, or is missing, is not
    /// known; lists are cut at 4096 elements.
    pub fn from_parameters(parameters: &[Parameter]) -> Self {
        let known = Known(
            parameters
                .iter()
                .map(|parameter| (parameter.name.as_str(), &parameter.value))
                .collect(),
        );
        Self {
            os: GuestOs {
                id: known.text("os.id"),
                name: known.text("os.name"),
                pretty_name: known.text("os.pretty-name"),
                version: known.text("os.version"),
                version_id: known.text("os.version-id"),
                kernel_release: known.text("os.kernel-release"),
                kernel_version: known.text("os.kernel-version"),
                machine: known.text("os.machine"),
            },
            interfaces: known.list("if", |interface| GuestInterface {
                name: known.text_or_empty(&format!("{interface}.name")),
                mac: known.text_or_empty(&format!("{interface}.hwaddr")),
            }),
        }
    }
}

/// Parameters by their names.
struct Known<'a>(BTreeMap<&'a str, &'a ParameterValue>);

impl Known<'_> {
    fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name) {
            Some(ParameterValue::Text(text)) if !text.is_empty() => Some(text.clone()),
            _ => None,
        }
    }

    fn text_or_empty(&self, name: &str) -> String {
        self.text(name).unwrap_or_default()
    }

    fn number<T: TryFrom<i128>>(&self, name: &str) -> Option<T> {
        match self.0.get(name) {
            Some(ParameterValue::Number(number)) => T::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The elements of `name.count`, each read by its own name. Elements of which nothing is there are
    /// left out: the count is the other side's word.
    fn list<T: Default + PartialEq>(&self, name: &str, read: impl Fn(&str) -> T) -> Vec<T> {
        let count: usize = self.number(&format!("{name}.count")).unwrap_or(0);
        (0..count.min(MAX_LIST))
            .map(|index| read(&format!("{name}.{index}")))
            .filter(|element| *element != T::default())
            .collect()
    }
}

#[cfg(test)]
mod tests;
