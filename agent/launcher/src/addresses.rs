//! Addresses of the pod as passt would find them: the addresses of the default route's interface.
//!
//! ```text
//! /proc/net/route ──────┐
//! /proc/net/ipv6_route ─┴▶ interface ─▶ its addresses, without those that are only valid locally
//! ```

use std::{fs, net::IpAddr};

use drydock_api::launcher::PodAddress;
use nix::{ifaddrs::getifaddrs, sys::socket::SockaddrStorage};

/// Returns the addresses of the pod. If there are none, passt finds the addresses itself.
pub(crate) fn of_pod() -> Vec<PodAddress> {
    let table = |name: &str| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let (ipv4, ipv6) = (default_ipv4(&table("route")), default_ipv6(&table("ipv6_route")));
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let mut found: Vec<PodAddress> = interfaces
        .filter_map(|interface| {
            let address = pod_address(interface.address?, interface.netmask?)?;
            let through = if address.address.is_ipv4() { &ipv4 } else { &ipv6 };
            (through.as_ref() == Some(&interface.interface_name)).then_some(address)
        })
        .collect();
    // Only the first address of each family is used.
    found.sort_by_key(|address| address.address.is_ipv6());
    found.dedup_by_key(|address| address.address.is_ipv6());
    found
}

/// Returns an address with its prefix length; `None` if other hosts cannot reach the address.
fn pod_address(address: SockaddrStorage, mask: SockaddrStorage) -> Option<PodAddress> {
    let of = |address: &SockaddrStorage| -> Option<IpAddr> {
        let ipv4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        ipv4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let address = of(&address)?;
    let prefix = match of(&mask)? {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    let is_local = match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    };
    let prefix = u8::try_from(prefix).ok()?;
    (!is_local && !address.is_unspecified() && !address.is_multicast()).then_some(PodAddress { address, prefix })
}

/// Returns the interface of the kernel's first IPv4 default route.
fn default_ipv4(table: &str) -> Option<String> {
    // Iface Destination Gateway Flags RefCnt Use Metric Mask ..
    let mut routes = table.lines().skip(1).map(|line| line.split_whitespace());
    routes.find_map(|mut columns| {
        let (interface, destination, mask) = (columns.next()?, columns.next()?, columns.nth(5)?);
        (destination == "00000000" && mask == "00000000").then(|| interface.to_owned())
    })
}

/// Returns the interface of the kernel's first IPv6 default route, ignoring the unreachable route on `lo`.
fn default_ipv6(table: &str) -> Option<String> {
    // destination, prefix, source, prefix, next hop, metric, references, use, flags, interface
    let mut routes = table.lines().map(|line| line.split_whitespace());
    routes.find_map(|mut columns| {
        let (destination, prefix) = (columns.next()?, columns.next()?);
        let interface = columns.nth(7)?;
        let everywhere = prefix == "00" && destination.bytes().all(|digit| digit == b'0');
        (everywhere && interface != "lo").then(|| interface.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use nix::sys::socket::SockaddrStorage;

    use super::{default_ipv4, default_ipv6, of_pod, pod_address};

    const IPV4: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
net1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
net1\t00000000\t0101810A\t0003\t0\t0\t0\t00000080\t0\t0\t0
eth0\t00000000\t0101810A\t0003\t0\t0\t0\t00000000\t0\t0\t0
";
    const IPV6: &str = "\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     net1
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
";

    #[test]
    fn the_interface_is_that_of_the_default_route() {
        assert_eq!(default_ipv4(IPV4).as_deref(), Some("eth0"));
        assert_eq!(default_ipv6(IPV6).as_deref(), Some("eth0"));
        for table in ["", "Iface\n", "Iface\neth0\n", "eth0 00000000"] {
            assert_eq!((default_ipv4(table), default_ipv6(table)), (None, None), "{table:?}");
        }
    }

    fn storage(text: &str) -> SockaddrStorage {
        text.parse::<SocketAddr>().unwrap().into()
    }

    #[test]
    fn pod_addresses_exclude_loopback_and_link_local() {
        for (address, mask, shown) in [
            ("10.1.2.3:0", "255.255.255.0:0", Some("10.1.2.3/24")),
            ("192.168.7.9:0", "255.255.255.255:0", Some("192.168.7.9/32")),
            ("[fd00::7]:0", "[ffff:ffff:ffff:ffff::]:0", Some("fd00::7/64")),
            ("127.0.0.1:0", "255.0.0.0:0", None),
            ("169.254.1.1:0", "255.255.0.0:0", None),
            ("[fe80::1]:0", "[ffff:ffff:ffff:ffff::]:0", None),
            ("[::1]:0", "[ffff::]:0", None),
        ] {
            let found = pod_address(storage(address), storage(mask));
            let found = found.map(|found| format!("{}/{}", found.address, found.prefix));
            assert_eq!(found.as_deref(), shown, "{address}");
        }
    }

    #[test]
    fn pod_has_at_most_one_address_per_family() {
        let families: Vec<bool> = of_pod().iter().map(|found| found.address.is_ipv6()).collect();
        assert!(
            matches!(families.as_slice(), [] | [false] | [true] | [false, true]),
            "{families:?}"
        );
    }
}
