//! Kubernetes quantities of bytes and of CPU.

/// Bytes of a quantity such as `64Mi`, `1.5G` or `0`; fractions of a byte are cut off.
///
/// `None` if it is not a quantity, is negative, or has more bytes than 64 bits can count.
pub fn bytes(text: &str) -> Option<u64> {
    scaled(text, 1)
}

/// Thousandths of a CPU of a quantity such as `2`, `500m` or `0.5`; smaller fractions are cut off.
///
/// `None` if it is not a quantity, is negative, or is more than 64 bits can count.
pub fn milli_cpus(text: &str) -> Option<u64> {
    scaled(text, 1000)
}

/// A quantity in units of which `units` make one.
fn scaled(text: &str, units: u128) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (numerator, denominator): (u128, u128) = match suffix {
        "" => (1, 1),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1000_u128.pow(2), 1),
        "G" => (1000_u128.pow(3), 1),
        "T" => (1000_u128.pow(4), 1),
        "P" => (1000_u128.pow(5), 1),
        "E" => (1000_u128.pow(6), 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 9 || (fraction.is_empty() && number.contains('.')) {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let product = digits.checked_mul(numerator)?.checked_mul(units)?;
    u64::try_from(product / denominator / scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0Mi", Some(0)),
            ("64Mi", Some(64 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("1G", Some(1_000_000_000)),
            ("1500m", Some(1)),
            ("16Ei", None),
            ("", None),
            ("Mi", None),
            ("-1", None),
            ("1MB", None),
            ("1.", None),
            (".5", None),
            ("1e3", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
    #[test]
    fn cpus_are_counted_in_thousandths() {
        for (text, expected) in [
            ("0", Some(0)),
            ("2", Some(2000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            ("1.2345", Some(1234)),
            ("1k", Some(1_000_000)),
            ("-1", None),
            ("two", None),
        ] {
            assert_eq!(milli_cpus(text), expected, "{text}");
        }
    }
}
