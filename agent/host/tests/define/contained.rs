//! Checks that one document is contained in another.

use roxmltree::Node;

/// Returns the first attribute, text or element of `written` that is missing in `read`, with its path.
///
/// Additional content of `read` is ignored.
pub(crate) fn lost(written: Node<'_, '_>, read: Node<'_, '_>) -> Option<String> {
    let name = written.tag_name().name();
    for attribute in written.attributes() {
        let (key, value) = (attribute.name(), attribute.value());
        // libvirt expands the machine type to its versioned name.
        let versioned = key == "machine" && value == "q35";
        let found = read
            .attributes()
            .find(|other| other.name() == key)
            .map(|other| other.value());
        let same = found == Some(value) || (versioned && found.is_some_and(|found| found.starts_with("pc-q35-")));
        if !same {
            return Some(format!("{name}/@{key}: {value:?} became {found:?}"));
        }
    }
    let text = |node: Node<'_, '_>| node.text().map(str::trim).unwrap_or_default().to_owned();
    if text(written) != text(read) {
        return Some(format!("{name}: {:?} became {:?}", text(written), text(read)));
    }
    let mut unused: Vec<_> = read.children().filter(Node::is_element).collect();
    for child in written.children().filter(Node::is_element) {
        let mut why = "is gone".to_owned();
        let place = unused.iter().position(|other| {
            if other.tag_name().name() != child.tag_name().name() {
                return false;
            }
            match lost(child, *other) {
                None => true,
                Some(what) => {
                    why = what;
                    false
                }
            }
        });
        match place {
            Some(place) => drop(unused.remove(place)),
            None => return Some(format!("{name}/{}: {why}", child.tag_name().name())),
        }
    }
    None
}
