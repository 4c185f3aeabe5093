//! The views of the console and their paths.

use percent_encoding::percent_decode_str;

/// Number of table rows on a page.
pub(super) const ROWS: usize = 100;

/// Device of a guest that a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestDevice {
    /// First serial port. KubeVirt gives it to the last client that connects.
    Console,
    /// First display.
    Display {
        /// Whether the display is taken from a client that uses it. Otherwise that client keeps it.
        take: bool,
    },
}

/// Content of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConsoleView {
    /// All nodes.
    Nodes,
    /// A node.
    Node(String),
    /// All virtual machines that have not ended.
    Machines,
    /// A virtual machine.
    Machine {
        /// Namespace of the virtual machine.
        namespace: String,
        /// Name of the virtual machine.
        name: String,
    },
    /// The serial console or the display of a guest.
    Guest {
        /// Namespace of the virtual machine.
        namespace: String,
        /// Name of the virtual machine.
        name: String,
        /// Device that is shown.
        device: GuestDevice,
    },
    /// All migrations that exist in the cluster.
    Migrations,
    /// A migration.
    Migration {
        /// Namespace of the migration.
        namespace: String,
        /// Name of the migration.
        name: String,
    },
    /// The dialog that cancels a migration.
    Cancel {
        /// Namespace of the migration.
        namespace: String,
        /// Name of the migration.
        name: String,
    },
    /// Misconfigurations of the cluster.
    Check,
    /// The dialog that starts the maintenance of nodes.
    Start(Vec<String>),
    /// The dialog that ends the maintenance of a node.
    Stop(String),
}

/// A view with its filter and page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ViewPath {
    pub(super) view: ConsoleView,
    /// Filter text. Rows without it are left out.
    pub(super) filter: String,
    /// Page of the table, from 0.
    pub(super) page: usize,
}

impl ConsoleView {
    /// Returns the namespace and the name of the shown virtual machine.
    pub(super) fn machine(&self) -> Option<(&str, &str)> {
        match self {
            Self::Machine { namespace, name } | Self::Guest { namespace, name, .. } => Some((namespace, name)),
            _ => None,
        }
    }

    /// Returns the entry of the navigation that the view belongs to.
    pub(super) fn section(&self) -> Option<&'static str> {
        match self {
            Self::Nodes | Self::Node(_) => Some("/nodes"),
            Self::Machines | Self::Machine { .. } | Self::Guest { .. } => Some("/virtual-machines"),
            Self::Migrations | Self::Migration { .. } => Some("/migrations"),
            Self::Check => Some("/check"),
            Self::Cancel { .. } | Self::Start(_) | Self::Stop(_) => None,
        }
    }
}

impl ViewPath {
    /// Returns the view of a path with its query. Returns `None` if the path is not valid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let segments = path.trim_matches('/').split('/').map(decoded);
        let segments = segments.collect::<Option<Vec<String>>>()?;
        let names: Vec<&str> = segments.iter().map(String::as_str).collect();
        let view = match names.as_slice() {
            [""] | ["nodes"] => ConsoleView::Nodes,
            ["nodes", name] => ConsoleView::Node((*name).to_owned()),
            ["virtual-machines"] => ConsoleView::Machines,
            ["virtual-machines", namespace, name] => ConsoleView::Machine {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
            },
            ["virtual-machines", namespace, name, device @ ..] => ConsoleView::Guest {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                device: match device {
                    ["console"] => GuestDevice::Console,
                    ["display"] => GuestDevice::Display { take: false },
                    ["display", "take"] => GuestDevice::Display { take: true },
                    _ => return None,
                },
            },
            ["check"] => ConsoleView::Check,
            ["migrations"] => ConsoleView::Migrations,
            ["migrations", namespace, name] => ConsoleView::Migration {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
            },
            ["cancel", namespace, name] => ConsoleView::Cancel {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
            },
            ["start", nodes @ ..] if !nodes.is_empty() => {
                ConsoleView::Start(nodes.iter().map(|&node| node.to_owned()).collect())
            }
            ["stop", name] => ConsoleView::Stop((*name).to_owned()),
            _ => return None,
        };
        let mut parsed = Self {
            view,
            filter: String::new(),
            page: 0,
        };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "q" => parsed.filter = decoded(&value.replace('+', " "))?,
                "page" => parsed.page = value.parse::<usize>().ok()?.checked_sub(1)?,
                _ => {}
            }
        }
        Some(parsed)
    }

    /// Returns whether a row with these texts passes the filter.
    pub(super) fn shows<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        let filter = self.filter.to_lowercase();
        filter.is_empty() || texts.into_iter().any(|text| text.to_lowercase().contains(&filter))
    }
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_a_view_or_nothing() {
        let machine = ConsoleView::Machine {
            namespace: "shop".into(),
            name: "web".into(),
        };
        let migration = ConsoleView::Migration {
            namespace: "shop".into(),
            name: "m".into(),
        };
        let guest = |device| ConsoleView::Guest {
            namespace: "shop".into(),
            name: "web".into(),
            device,
        };
        for (path, expected) in [
            ("/", Some(ConsoleView::Nodes)),
            ("/nodes", Some(ConsoleView::Nodes)),
            ("/nodes/", Some(ConsoleView::Nodes)),
            ("/nodes/worker-1", Some(ConsoleView::Node("worker-1".into()))),
            ("/nodes/a%2Fb", Some(ConsoleView::Node("a/b".into()))),
            ("/virtual-machines", Some(ConsoleView::Machines)),
            ("/virtual-machines/shop/web", Some(machine)),
            ("/virtual-machines/shop", None),
            ("/virtual-machines/shop/web/console", Some(guest(GuestDevice::Console))),
            (
                "/virtual-machines/shop/web/display",
                Some(guest(GuestDevice::Display { take: false })),
            ),
            (
                "/virtual-machines/shop/web/display/take",
                Some(guest(GuestDevice::Display { take: true })),
            ),
            ("/virtual-machines/shop/web/console/take", None),
            ("/virtual-machines/shop/web/usbredir", None),
            ("/check", Some(ConsoleView::Check)),
            ("/migrations", Some(ConsoleView::Migrations)),
            ("/migrations/shop/m", Some(migration)),
            ("/cancel/shop", None),
            ("/start/a/b", Some(ConsoleView::Start(vec!["a".into(), "b".into()]))),
            ("/start", None),
            ("/stop/a", Some(ConsoleView::Stop("a".into()))),
            ("/nodes/%ff", None),
            ("/secrets", None),
        ] {
            assert_eq!(ViewPath::parse(path).map(|path| path.view), expected, "{path}");
        }
    }

    #[test]
    fn query_selects_rows() {
        let path = ViewPath::parse("/nodes?q=Work+1&page=3").unwrap();
        assert_eq!((path.filter.as_str(), path.page), ("Work 1", 2));
        assert!(path.shows(["other", "my work 12"]) && !path.shows(["worker-1"]));
        assert!(ViewPath::parse("/nodes").unwrap().shows([]));
        for bad in ["/nodes?page=0", "/nodes?page=x", "/nodes?q=%ff"] {
            assert_eq!(ViewPath::parse(bad), None, "{bad}");
        }
    }
}
