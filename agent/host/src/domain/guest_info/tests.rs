//! Guests' agents, as libvirt tells of them, and agents that lie.

use proptest::prelude::{any, proptest};

use super::{Filesystem, GuestAddress, GuestInfo, GuestInterface, Parameter, ParameterValue};

/// Parameters as `virsh guestinfo` prints them. Numbers are those that libvirt gives as numbers.
fn parameters(text: &str) -> Vec<Parameter> {
    const NUMBERS: [&str; 5] = ["count", "prefix", "offset", "total-bytes", "used-bytes"];
    text.lines()
        .map(|line| {
            let (name, value) = line.split_once(" : ").unwrap();
            let name = name.trim();
            let is_number = NUMBERS.contains(&name.rsplit('.').next().unwrap());
            let value = if is_number {
                ParameterValue::Number(value.parse().unwrap())
            } else {
                ParameterValue::Text(value.into())
            };
            Parameter {
                name: name.into(),
                value,
            }
        })
        .collect()
}

fn address(address: &str, prefix: u32) -> GuestAddress {
    GuestAddress {
        address: address.into(),
        prefix,
    }
}

#[test]
fn everything_that_an_agent_says() {
    let info = GuestInfo::from_parameters(&parameters(include_str!("../../../testdata/made/guest-info.txt")));
    assert_eq!(info.os.pretty_name.as_deref(), Some("Debian GNU/Linux 13 (trixie)"));
    assert_eq!(info.os.kernel_release.as_deref(), Some("6.12.48+deb13-cloud-amd64"));
    assert_eq!(
        (info.os.id.as_deref(), info.os.version_id.as_deref()),
        (Some("debian"), Some("13"))
    );
    assert_eq!(info.hostname.as_deref(), Some("vm-1"));
    assert_eq!(info.timezone, Some(("CET".into(), 3600)));
    let interfaces = [
        GuestInterface {
            name: "lo".into(),
            mac: "00:00:00:00:00:00".into(),
            addresses: vec![address("127.0.0.1", 8), address("::1", 128)],
        },
        GuestInterface {
            name: "enp1s0".into(),
            mac: "52:54:00:6b:3c:58".into(),
            addresses: vec![address("10.244.1.17", 24)],
        },
    ];
    assert_eq!(info.interfaces, interfaces);
    let efi = Filesystem {
        name: "vda15".into(),
        mountpoint: "/boot/efi".into(),
        kind: "vfat".into(),
        ..Filesystem::default()
    };
    assert_eq!(info.filesystems[0].total_bytes, Some(3_081_756_672));
    assert_eq!(info.filesystems[1..], [efi]);
}

#[test]
fn what_is_missing_or_wrong_is_not_known() {
    assert_eq!(GuestInfo::from_parameters(&[]), GuestInfo::default());
    let lies = parameters(
        "if.count : 4000000000\nif.7.name : eth7\nif.7.addr.count : -1\nfs.count : 99999999999999999999\nhostname : ",
    );
    let info = GuestInfo::from_parameters(&lies);
    assert_eq!(info.interfaces.len(), 1);
    assert_eq!((info.filesystems.len(), info.hostname), (0, None));
    let wrong = [Parameter {
        name: "hostname".into(),
        value: ParameterValue::Number(1),
    }];
    assert_eq!(GuestInfo::from_parameters(&wrong).hostname, None);
}

proptest! {
    /// Whatever comes is read, in bounded time and space.
    #[test]
    fn anything_is_read(numbers in proptest::collection::vec(("(if|fs)(\\.[0-9])?(\\.addr)?\\.(count|name|prefix)", any::<i64>()), 0..20)) {
        let parameters: Vec<Parameter> = numbers
            .into_iter()
            .map(|(name, number)| Parameter { name, value: ParameterValue::Number(number.into()) })
            .collect();
        let info = GuestInfo::from_parameters(&parameters);
        assert!(info.interfaces.len() <= 10 && info.filesystems.is_empty());
    }
}
