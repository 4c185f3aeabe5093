//! Information from the guest agent.
//!
//! The values come from inside the guest and are only as trustworthy as the guest.

use std::collections::BTreeMap;

use crate::document::MAX_LIST;

/// One of libvirt's typed parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name of the parameter, such as `if.0.addr.1.addr`.
    pub name: String,
    /// Value of the parameter.
    pub value: ParameterValue,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterValue {
    /// Any of libvirt's integers, and booleans as 0 and 1.
    Number(i128),
    /// A string, at most 256 characters of it.
    Text(String),
    /// A value of a type that is not needed.
    Other,
}

/// The information that the guest agent provides. Missing information is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestInfo {
    /// Operating system of the guest.
    pub os: GuestOs,
    /// Network interfaces of the guest.
    pub interfaces: Vec<GuestInterface>,
}

/// A guest's operating system, with the fields of its `os-release`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestOs {
    /// `ID`, such as `debian` or `mswindows`.
    pub id: Option<String>,
    /// `NAME`.
    pub name: Option<String>,
    /// `PRETTY_NAME`.
    pub pretty_name: Option<String>,
    /// `VERSION`.
    pub version: Option<String>,
    /// `VERSION_ID`.
    pub version_id: Option<String>,
    /// Kernel release.
    pub kernel_release: Option<String>,
    /// Kernel version.
    pub kernel_version: Option<String>,
    /// Hardware architecture.
    pub machine: Option<String>,
}

/// A network interface of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestInterface {
    /// Name of the interface in the guest.
    pub name: String,
    /// MAC address of the interface; empty if the interface has none.
    pub mac: String,
}

impl GuestInfo {
    /// Converts libvirt's parameters.
    ///
    /// A parameter that is missing or has another type than libvirt documents is treated as unknown. Lists are
    /// truncated at 4096 elements.
    pub fn from_parameters(parameters: &[Parameter]) -> Self {
        let known = NamedParameters(
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

/// Parameters, indexed by name.
struct NamedParameters<'a>(BTreeMap<&'a str, &'a ParameterValue>);

impl NamedParameters<'_> {
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

    /// Reads the elements of the list `name`, whose length is the parameter `name.count`. Element `i` is read under the
    /// name `name.i`.
    ///
    /// Elements without any data are omitted, because the count comes from the guest and is not trusted.
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
