//! Kubernetes quantities (`100m`, `1Gi`, `1e3`), exact down to 10⁻⁹ and checked for overflow.

use std::fmt;

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not have the form of one.
    #[error("{0:?} is not a quantity; write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3")]
    Form(String),
    /// The number does not fit.
    #[error("{0:?} is too large for a quantity; the largest is 9223372036854775807 (just under 8Ei)")]
    Overflow(String),
}

/// How a quantity was written, which decides how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// An amount. Compares by value, prints in canonical form.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

const NANO: i128 = 1_000_000_000;

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nanos: 0, format: Format::Decimal };

    /// A whole number.
    #[must_use]
    pub fn whole(value: i64) -> Self {
        Self { nanos: i128::from(value) * NANO, format: Format::Decimal }
    }

    /// A whole number of bytes, printed with binary suffixes (`24684100Ki`).
    #[must_use]
    pub fn bytes(value: i64) -> Self {
        Self { nanos: i128::from(value) * NANO, format: Format::Binary }
    }

    /// Thousandths.
    #[must_use]
    pub fn from_milli(value: i64) -> Self {
        Self { nanos: i128::from(value) * (NANO / 1000), format: Format::Decimal }
    }

    /// Parses a quantity. Digits below 10⁻⁹ are rounded away from zero, as the API server does.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let form = || QuantityError::Form(text.to_owned());
        let overflow = || QuantityError::Overflow(text.to_owned());
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(form());
        }
        let (format, multiplier, exponent) = scale(suffix).ok_or_else(form)?;

        // The digits as one integer, and how many of them stand behind the point.
        let whole = whole.trim_start_matches('0');
        let fraction = fraction.trim_end_matches('0');
        if whole.len() > 36 {
            return Err(overflow());
        }
        // Digits past the 27th cannot change the value, only whether it is rounded up.
        let cut = fraction.get(..27.min(fraction.len())).unwrap_or_default();
        let lost = cut.len() < fraction.len();
        let digits = format!("{whole}{cut}");
        let mantissa: i128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| overflow())? };
        let mantissa = mantissa.checked_mul(multiplier).ok_or_else(overflow)?;
        let power = exponent + 9 - i32::try_from(cut.len()).unwrap_or(i32::MAX);
        let mut nanos = if mantissa == 0 {
            0
        } else if power >= 0 {
            let factor =
                u32::try_from(power).ok().and_then(|p| 10_i128.checked_pow(p)).ok_or_else(overflow)?;
            mantissa.checked_mul(factor).ok_or_else(overflow)?
        } else {
            match power.checked_neg().and_then(|p| u32::try_from(p).ok()).and_then(|p| 10_i128.checked_pow(p))
            {
                Some(divisor) => ceil_div(mantissa, divisor),
                None => 1,
            }
        };
        if lost && power < 0 {
            nanos = nanos.max(1);
        }
        if nanos > i128::from(i64::MAX) * NANO {
            return Err(overflow());
        }
        Ok(Self { nanos: if negative { -nanos } else { nanos }, format })
    }

    /// The value rounded up to a whole number.
    #[must_use]
    pub fn value(self) -> i64 {
        clamp(ceil_div(self.nanos, NANO))
    }

    /// The value in thousandths, rounded up.
    #[must_use]
    pub fn milli(self) -> i64 {
        clamp(ceil_div(self.nanos, NANO / 1000))
    }

    /// Whether it is zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it is a whole number.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The sum, kept within what a quantity can hold; printed like `self`, or like `other` when `self` is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let nanos = self.nanos.saturating_add(other.nanos);
        Self { nanos, format: if self.nanos == 0 { other.format } else { self.format } }
    }

    /// The difference, kept within what a quantity can hold; printed like `self`, or like `other` when `self` is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let nanos = self.nanos.saturating_sub(other.nanos);
        Self { nanos, format: if self.nanos == 0 { other.format } else { self.format } }
    }

    /// The larger of two.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if other.nanos > self.nanos { other } else { self }
    }
}

impl serde::Serialize for Quantity {
    /// As its canonical text, like the API.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    /// The canonical form: no fraction, the largest suffix that keeps it exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANO || self.nanos % NANO != 0;
        if self.format == Format::Binary && !small {
            let mut value = self.nanos / NANO;
            let mut step = 0;
            while value % 1024 == 0 && step < 6 {
                value /= 1024;
                step += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]);
        }
        let (mut value, mut exponent) = (self.nanos, -9);
        while value % 1000 == 0 && exponent < 18 {
            value /= 1000;
            exponent += 3;
        }
        if self.format == Format::Exponent {
            return if exponent == 0 { write!(f, "{value}") } else { write!(f, "{value}e{exponent}") };
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            18 => "E",
            _ => "",
        };
        write!(f, "{value}{suffix}")
    }
}

/// Format, factor and power of ten of a suffix.
fn scale(suffix: &str) -> Option<(Format, i128, i32)> {
    let decimal = |exponent| Some((Format::Decimal, 1, exponent));
    let binary = |step: u32| Some((Format::Binary, 1_i128 << (10 * step), 0));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i32 = exponent.parse().ok()?;
            (-1000..=1000).contains(&exponent).then_some((Format::Exponent, 1, exponent))
        }
    }
}

fn ceil_div(value: i128, divisor: i128) -> i128 {
    let quotient = value.div_euclid(divisor);
    quotient + i128::from(value.rem_euclid(divisor) != 0)
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for (text, value, milli, canonical) in [
            ("0", 0, 0, "0"),
            ("1", 1, 1000, "1"),
            ("100m", 1, 100, "100m"),
            ("1000m", 1, 1000, "1"),
            ("0.5", 1, 500, "500m"),
            (".5", 1, 500, "500m"),
            ("1.", 1, 1000, "1"),
            ("1Ki", 1024, 1_024_000, "1Ki"),
            ("64Mi", 67_108_864, 67_108_864_000, "64Mi"),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000, "1536Mi"),
            ("1e3", 1000, 1_000_000, "1e3"),
            ("2E", 2_000_000_000_000_000_000, i64::MAX, "2E"),
            ("1E3", 1000, 1_000_000, "1e3"),
            ("-1", -1, -1000, "-1"),
            ("0.0000000001", 1, 1, "1n"),
            ("128974848", 128_974_848, 128_974_848_000, "128974848"),
            ("129e6", 129_000_000, 129_000_000_000, "129e6"),
            ("1023Ki", 1_047_552, 1_047_552_000, "1023Ki"),
            ("0.5Ki", 512, 512_000, "512"),
        ] {
            let quantity = Quantity::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((quantity.value(), quantity.milli()), (value, milli), "{text}");
            assert_eq!(quantity.to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in ["", "Gi", "1.2.3", "1GiB", "ten", "1 Gi", "1e", "0x10", "1ee3", "--1", "1e99999", "٣"] {
            assert!(matches!(Quantity::parse(text), Err(QuantityError::Form(_))), "{text}");
        }
        for text in ["9e18k", "99999999999999999999", "16Ei", "1e30", "1e900"] {
            let parsed = Quantity::parse(text);
            assert!(parsed.is_err(), "{text}: {parsed:?}");
        }
        assert!(matches!(Quantity::parse("16Ei"), Err(QuantityError::Overflow(_))));
    }
}
