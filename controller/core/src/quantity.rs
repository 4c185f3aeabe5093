//! Kubernetes quantities of bytes and of CPU, parsed exactly and rounded up, as in
//! `k8s.io/apimachinery/pkg/api/resource`.
//!
//! ```text
//!  [+-] digits[.digits] [ Ki Mi Gi Ti Pi Ei | n u m k M G T P E | e[+-]digits ]
//! ```
//!
//! `kube_quantity`, the only crate for this, is limited to 96 bits and does not round up.

/// Maximum value of a quantity, in any unit: Kubernetes caps larger quantities (`16Ei`) to it.
pub const MOST: u64 = i64::MAX as u64;

/// Parses a quantity of bytes such as `64Mi`, `1.5G`, `1e9` or `0`. Rounds up to whole bytes; caps at [`MOST`].
///
/// `None` if it is not a quantity or is negative.
pub fn bytes(text: &str) -> Option<u64> {
    scaled(text, 0)
}

/// Parses a quantity of CPU such as `2`, `500m` or `0.5` and returns it in thousandths. Rounds up to whole
/// thousandths; caps at [`MOST`].
///
/// `None` if it is not a quantity or is negative.
pub fn milli_cpus(text: &str) -> Option<u64> {
    scaled(text, 3)
}

/// Parses a quantity and returns it multiplied by 10 to the power of `scale`.
fn scaled(text: &str, scale: i64) -> Option<u64> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (power_of_1024, exponent) = multiplier(suffix)?;
    let mut digits: Vec<u8> = whole
        .bytes()
        .chain(fraction.bytes())
        .map(|digit| digit - b'0')
        .collect();
    for _ in 0..power_of_1024 {
        multiply_by_1024(&mut digits);
    }
    let is_zero = digits.iter().all(|digit| *digit == 0);
    if negative && !is_zero {
        return None;
    }
    // Position of the decimal point, counted from the first of the digits.
    let point = i64::try_from(digits.len()).ok()? - i64::try_from(fraction.len()).ok()? + exponent + scale;
    Some(if is_zero { 0 } else { rounded_up(&digits, point) })
}

/// Returns the factor of a suffix: 1024 to the power of the first number, times 10 to the power of the second.
fn multiplier(suffix: &str) -> Option<(u32, i64)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (1, 0),
        "Mi" => (2, 0),
        "Gi" => (3, 0),
        "Ti" => (4, 0),
        "Pi" => (5, 0),
        "Ei" => (6, 0),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            // A sign, and as many digits as 32 bits hold: Kubernetes truncates the rest.
            (0, exponent.parse::<i32>().ok()?.into())
        }
    })
}

fn multiply_by_1024(digits: &mut Vec<u8>) {
    let mut carry = 0_u32;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = u8::try_from(product % 10).unwrap_or_default();
        carry = product / 10;
    }
    // The carry is below 1024: four digits.
    let carried = [carry / 1000, carry / 100 % 10, carry / 10 % 10, carry % 10];
    digits.splice(0..0, carried.map(|digit| u8::try_from(digit).unwrap_or_default()));
}

/// Returns the smallest whole number that is not below `digits` with a decimal point after the first `point` of them.
fn rounded_up(digits: &[u8], point: i64) -> u64 {
    let mut value: u64 = 0;
    let whole = usize::try_from(point).unwrap_or(0);
    let first = digits.iter().position(|digit| *digit != 0).unwrap_or(digits.len());
    if whole.saturating_sub(first) > 20 {
        return MOST;
    }
    for index in first..whole {
        let digit = digits.get(index).copied().unwrap_or(0);
        value = value.saturating_mul(10).saturating_add(digit.into());
    }
    let rest = digits.get(whole..).unwrap_or_default();
    value
        .saturating_add(rest.iter().any(|digit| *digit != 0).into())
        .min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows of apimachinery's `quantity_test.go`, in bytes and in thousandths.
    #[test]
    fn quantities_are_read_like_in_kubernetes() {
        for (text, in_bytes, in_thousandths) in [
            ("0", 0, 0),
            ("0n", 0, 0),
            ("0Ki", 0, 0),
            ("0T", 0, 0),
            ("1", 1, 1000),
            ("1Ki", 1 << 10, 1000 << 10),
            ("7Mi", 7 << 20, 7000 << 20),
            ("64Mi", 64 << 20, 64_000 << 20),
            ("6Gi", 6 << 30, 6000 << 30),
            ("100Ti", 100 << 40, 100_000 << 40),
            ("4Pi", 4 << 50, 4000 << 50),
            ("3Ei", 3 << 60, MOST),
            ("5n", 1, 1),
            ("4u", 1, 1),
            ("3m", 1, 3),
            ("1500m", 2, 1500),
            ("50k", 50_000, 50_000_000),
            ("6G", 6_000_000_000, 6_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000, MOST),
            ("1E-3", 1, 1),
            ("1e3", 1000, 1_000_000),
            ("1.3E+6", 1_300_000, 1_300_000_000),
            ("0.5e-1", 1, 50),
            ("100.035k", 100_035, 100_035_000),
            ("0.0005k", 1, 500),
            ("0.50000", 1, 500),
            ("1.2345", 2, 1235),
            ("7.123456M", 7_123_456, 7_123_456_000),
            ("3.001n", 1, 1),
            ("0.0000000001", 1, 1),
            ("100.035Ki", 102_436, 102_435_840),
            ("0.5Mi", 1 << 19, 1000 << 19),
            ("0.05Gi", 53_687_092, 53_687_091_200),
            ("0.025Ti", 27_487_790_695, 27_487_790_694_400),
            ("0.000000000001Ki", 1, 1),
            (".001", 1, 1),
            (".0001k", 1, 100),
            ("1.", 1, 1000),
            ("1.G", 1_000_000_000, 1_000_000_000_000),
            (".5", 1, 500),
            ("9Ei", MOST, MOST),
            ("16Ei", MOST, MOST),
            ("12E", MOST, MOST),
            ("9223372036854775807Ki", MOST, MOST),
            ("99999999999999999999999", MOST, MOST),
            ("1e2147483647", MOST, MOST),
            ("0e2147483647", 0, 0),
            ("1e-2147483648", 1, 1),
            ("00000000000000000000000000001", 1, 1000),
        ] {
            for signed in [text.to_owned(), format!("+{text}")] {
                assert_eq!(bytes(&signed), Some(in_bytes), "{signed}");
                assert_eq!(milli_cpus(&signed), Some(in_thousandths), "{signed}");
            }
            let negative = format!("-{text}");
            let expected = (in_bytes == 0).then_some(0);
            assert_eq!(bytes(&negative), expected, "{negative}");
            assert_eq!(milli_cpus(&negative), expected, "{negative}");
        }
    }

    #[test]
    fn texts_that_are_no_quantities_are_refused() {
        for text in [
            "", "+", "-", ".", "-.", "Mi", "two", "1MB", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i",
            "-3.01i", "-3.01e-", "1e", "1e1.5", "1e+-1", " 1", "1 ", "1 Mi", "--1", "+-1", "1Ki1", "\u{661}",
        ] {
            assert_eq!(bytes(text), None, "{text}");
            assert_eq!(milli_cpus(text), None, "{text}");
        }
    }

    proptest! {
        /// Strings that match the definitions' pattern are parsed, unless they are negative or have a fraction or too
        /// many digits in the exponent, which Kubernetes refuses too.
        #[test]
        fn quantity_that_matches_the_schema_is_read_or_negative(
            text in r"(\+|-)?(([0-9]{1,30}(\.[0-9]{0,30})?)|(\.[0-9]{1,30}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,8}))?",
        ) {
            let negative = text.starts_with('-');
            prop_assert_eq!(bytes(&text).is_some(), !negative || bytes(&text[1..]) == Some(0), "{}", text);
        }

        #[test]
        fn no_text_is_too_much_to_read(text in ".{0,80}") {
            prop_assert!(bytes(&text).is_none_or(|bytes| bytes <= MOST));
            prop_assert!(milli_cpus(&text).is_none_or(|milli| milli <= MOST));
        }

        /// Fractions are rounded up, never down, and by less than one.
        #[test]
        fn fractions_are_rounded_up(nanos in 0_u64..10_000_000_000_000) {
            prop_assert_eq!(bytes(&format!("{nanos}n")), Some(nanos.div_ceil(1_000_000_000)));
            prop_assert_eq!(milli_cpus(&format!("{nanos}n")), Some(nanos.div_ceil(1_000_000)));
            let (whole, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
            let point = format!("{whole}.{fraction:09}");
            prop_assert_eq!(bytes(&point), Some(nanos.div_ceil(1_000_000_000)));
            let kibi = u128::from(nanos) * 1024;
            prop_assert_eq!(bytes(&format!("{point}Ki")).map(u128::from), Some(kibi.div_ceil(1_000_000_000)));
        }
    }
}
