//! Identities of a guest, derived from its name alone, so that they are the same after each restart.

use uuid::Uuid;

/// Namespace of the UUIDs that are generated here; keeps them distinct from all others.
const NAMES: Uuid = Uuid::from_u128(0x3d0c_2f5e_6a0b_5c61_9f0e_7d2b_8c41_aa95);

/// Returns the firmware UUID of the guest with that name, used unless its manifest sets one.
pub fn firmware_uuid(namespace: &str, name: &str) -> String {
    // Kubernetes names contain no `/`.
    Uuid::new_v5(&NAMES, format!("firmware/{namespace}/{name}").as_bytes()).to_string()
}

/// Returns the MAC address of that interface, used unless its manifest sets one: unicast and locally administered,
/// `02:` and 40 bits.
pub fn mac_address(namespace: &str, name: &str, interface: &str) -> String {
    let hash = Uuid::new_v5(&NAMES, format!("interface/{namespace}/{name}/{interface}").as_bytes());
    let [a, b, c, d, e, ..] = hash.into_bytes();
    format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

/// Returns a UUID in libvirt's notation: lower case.
pub(super) fn plain_uuid(text: &str) -> Option<String> {
    Uuid::try_parse(text).ok().map(|uuid| uuid.hyphenated().to_string())
}

/// Returns a MAC address in libvirt's notation: lower case, with colons. `None` if it is invalid, a group address, or
/// all zeros.
pub(super) fn plain_mac_address(text: &str) -> Option<String> {
    let bytes: Vec<u8> = text
        .split([':', '-'])
        .map(|part| {
            let hex = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            u8::from_str_radix(part, 16).ok().filter(|_| hex)
        })
        .collect::<Option<_>>()?;
    let [a, b, c, d, e, f] = bytes.try_into().ok()?;
    let card = a & 1 == 0 && [a, b, c, d, e, f] != [0; 6];
    card.then(|| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn identities_stay_the_same_in_all_versions() {
        assert_eq!(firmware_uuid("shop", "db"), "d613a626-7cb5-5eee-a282-8dff63205fbc");
        assert_eq!(mac_address("shop", "db", "default"), "02:ad:98:7e:d0:13");
    }

    #[test]
    fn identities_differ_where_names_do() {
        let uuids: BTreeSet<_> = [("a", "b"), ("a", "c"), ("b", "b"), ("ab", ""), ("", "ab")]
            .map(|(namespace, name)| firmware_uuid(namespace, name))
            .into();
        assert_eq!(uuids.len(), 5);
        let addresses: BTreeSet<_> = [("a", "b", "c"), ("a", "b", "d"), ("a", "c", "c"), ("b", "b", "c")]
            .map(|(namespace, name, interface)| mac_address(namespace, name, interface))
            .into();
        assert_eq!(addresses.len(), 4);
    }

    #[test]
    fn mac_addresses_are_read_in_all_manifest_notations() {
        for (text, expected) in [
            ("02:00:00:AB:cd:01", Some("02:00:00:ab:cd:01")),
            ("de-ad-00-00-be-af", Some("de:ad:00:00:be:af")),
            ("01:00:00:00:00:00", None),
            ("ff:ff:ff:ff:ff:ff", None),
            ("00:00:00:00:00:00", None),
            ("02:00:00:00:00", None),
            ("02:00:00:00:00:00:00", None),
            ("02:00:00:00:00:+1", None),
            ("2:00:00:00:00:001", None),
            ("", None),
        ] {
            assert_eq!(plain_mac_address(text).as_deref(), expected, "{text}");
        }
        let own = mac_address("a", "b", "c");
        assert_eq!(plain_mac_address(&own).as_ref(), Some(&own));
    }
}
