//! Tests with recorded data of guest agents, and with data of guest agents that send wrong values.

use proptest::prelude::{any, proptest};

use super::{GuestInfo, GuestInterface, Parameter, ParameterValue};

/// Parses parameters in the format of `virsh guestinfo`. Values that libvirt returns as numbers become numbers.
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

#[test]
fn every_field_of_the_guest_agent_is_parsed() {
    let info = GuestInfo::from_parameters(&parameters(include_str!("../../../testdata/made/guest-info.txt")));
    assert_eq!(info.os.pretty_name.as_deref(), Some("Debian GNU/Linux 13 (trixie)"));
    assert_eq!(info.os.kernel_release.as_deref(), Some("6.12.48+deb13-cloud-amd64"));
    assert_eq!(
        (info.os.id.as_deref(), info.os.version_id.as_deref()),
        (Some("debian"), Some("13"))
    );
    let interfaces = [
        GuestInterface {
            name: "lo".into(),
            mac: "00:00:00:00:00:00".into(),
        },
        GuestInterface {
            name: "enp1s0".into(),
            mac: "52:54:00:6b:3c:58".into(),
        },
    ];
    assert_eq!(info.interfaces, interfaces);
}

#[test]
fn missing_or_invalid_guest_info_is_unknown() {
    assert_eq!(GuestInfo::from_parameters(&[]), GuestInfo::default());
    let lies = parameters("if.count : 4000000000\nif.7.name : eth7\nif.8.name : \nos.id : ");
    let info = GuestInfo::from_parameters(&lies);
    assert_eq!(info.interfaces.len(), 1);
    assert_eq!(info.os.id, None);
    let endless = parameters("if.count : 99999999999999999999\nif.0.name : eth0");
    assert_eq!(GuestInfo::from_parameters(&endless).interfaces, []);
    let wrong = [Parameter {
        name: "os.id".into(),
        value: ParameterValue::Number(1),
    }];
    assert_eq!(GuestInfo::from_parameters(&wrong).os.id, None);
}

proptest! {
    /// Any parameters are processed in bounded time and space.
    #[test]
    fn anything_is_read(numbers in proptest::collection::vec(("(if|os)(\\.[0-9])?\\.(count|name|hwaddr)", any::<i64>()), 0..20)) {
        let parameters: Vec<Parameter> = numbers
            .into_iter()
            .map(|(name, number)| Parameter { name, value: ParameterValue::Number(number.into()) })
            .collect();
        let info = GuestInfo::from_parameters(&parameters);
        assert!(info.interfaces.is_empty() && info.os.name.is_none());
    }
}
