//! Why an object is not admitted.

use std::fmt;

use super::VERSION;

/// Values are cut to so many characters in sentences.
const VALUE: usize = 80;
/// So many refusals are told in one answer; more help nobody.
pub const MAX_REFUSALS: usize = 50;

/// Why something is not admitted, stable for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// KubeVirt has this field or value, Drydock does not.
    NotSupported,
    /// There is no such field.
    UnknownField,
    /// It cannot be read at all.
    Malformed,
    /// The value is not among those allowed.
    NotAllowed,
    /// It is missing.
    Required,
    /// It is there twice.
    Duplicate,
    /// It contradicts another field.
    Conflict,
    /// It is somebody else's to set.
    Reserved,
    /// It cannot be changed.
    Immutable,
    /// What it names is not in a state for it.
    WrongState,
}

impl Reason {
    /// The stable word, which is KubeVirt's and Kubernetes' cause where they have one.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotSupported => "FieldValueNotSupported",
            Self::UnknownField => "FieldUnknown",
            Self::Malformed => "FieldMalformed",
            Self::NotAllowed => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Conflict => "FieldConflict",
            Self::Reserved => "FieldReserved",
            Self::Immutable => "FieldImmutable",
            Self::WrongState => "WrongState",
        }
    }
}

/// One reason why an object is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Path of the field, such as `spec.domain.devices.disks[0].name`.
    pub field: String,
    /// A sentence for people that names the field, the value and what is allowed.
    pub message: String,
}

impl Refusal {
    /// The message without the field, which clients write before it (`kubectl` for one, as `field: cause`).
    pub fn cause(&self) -> &str {
        let rest = self.message.strip_prefix(&self.field);
        let cause = rest.and_then(|rest| rest.strip_prefix(": ").or_else(|| rest.strip_prefix(' ')));
        cause.map_or(self.message.as_str(), |cause| {
            cause.strip_prefix("is ").unwrap_or(cause)
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// All refusals in one answer.
pub fn sentence(refusals: &[Refusal]) -> String {
    let mut told: Vec<String> = refusals.iter().take(MAX_REFUSALS).map(ToString::to_string).collect();
    if let Some(more) = refusals.len().checked_sub(MAX_REFUSALS).filter(|more| *more > 0) {
        told.push(format!("and {more} more"));
    }
    told.join("; ")
}

/// Path of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct At(String);

impl At {
    /// A path from the object's root.
    pub(super) fn root(path: &str) -> Self {
        Self(path.into())
    }

    /// A field of what is here.
    pub(super) fn field(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// An entry of the map that is here, whose keys may have dots.
    pub(super) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// A member of the list that is here.
    pub(super) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Refusals as they are found.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<Refusal>);

impl Refusals {
    /// All that were found.
    pub(super) fn into_vec(self) -> Vec<Refusal> {
        self.0
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether something in this place has been refused already.
    pub(super) fn has_refused_within(&self, at: &At) -> bool {
        self.0.iter().any(|refusal| {
            let inner = refusal.field.strip_prefix(&at.0);
            inner.is_some_and(|inner| inner.starts_with('.'))
        })
    }

    fn add(&mut self, reason: Reason, at: &At, message: String) {
        self.0.push(Refusal {
            reason,
            field: at.0.clone(),
            message,
        });
    }

    /// A field that is not carried out.
    pub(super) fn not_supported(&mut self, at: &At) {
        let message = format!("{at} is not supported by Drydock {VERSION}");
        self.add(Reason::NotSupported, at, message);
    }

    /// A value that is not carried out.
    pub(super) fn value_not_supported(&mut self, at: &At, value: &str, allowed: &str) {
        let value = cut(value);
        let message = format!("{at}: `{value}` is not supported by Drydock {VERSION}; allowed: {allowed}");
        self.add(Reason::NotSupported, at, message);
    }

    /// A field that nobody has, with the one that may be meant.
    pub(super) fn unknown(&mut self, at: &At, kind: &str, meant: Option<&str>) {
        let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        let at = At(cut_path(&at.0));
        let message = format!("{at} is not a field of {kind}{meant}");
        self.add(Reason::UnknownField, &at, message);
    }

    /// Something that cannot be read.
    pub(super) fn malformed(&mut self, at: &At, why: &str) {
        let message = format!("{at} cannot be read: {why}");
        self.add(Reason::Malformed, at, message);
    }

    /// A value that is not allowed.
    pub(super) fn not_allowed(&mut self, at: &At, value: impl fmt::Display, allowed: impl fmt::Display) {
        let value = cut(&value.to_string());
        let message = format!("{at}: `{value}` is not allowed; allowed: {allowed}");
        self.add(Reason::NotAllowed, at, message);
    }

    /// Something that is missing.
    pub(super) fn required(&mut self, at: &At, why: impl fmt::Display) {
        let message = format!("{at} must be set: {why}");
        self.add(Reason::Required, at, message);
    }

    /// A value that is there twice.
    pub(super) fn duplicate(&mut self, at: &At, value: impl fmt::Display, first: &At) {
        let value = cut(&value.to_string());
        let message = format!("{at}: `{value}` is used already by {first}");
        self.add(Reason::Duplicate, at, message);
    }

    /// Two that cannot both be set.
    pub(super) fn conflict(&mut self, at: &At, with: impl fmt::Display) {
        let message = format!("{at} cannot be set together with {with}");
        self.add(Reason::Conflict, at, message);
    }

    /// Something that only one user may set.
    pub(super) fn reserved(&mut self, at: &At, user: &str) {
        let message = format!("{at} can only be set by {user}; leave it out");
        self.add(Reason::Reserved, at, message);
    }

    /// Values that are right one by one and cannot be had together.
    pub(super) fn impossible(&mut self, at: &At, why: &str) {
        let message = format!("{at} cannot be had: {why}");
        self.add(Reason::NotAllowed, at, message);
    }

    /// Something that cannot be changed, in the words that KubeVirt has for it.
    pub(super) fn immutable(&mut self, at: &At, words: &str) {
        self.add(Reason::Immutable, at, words.into());
    }

    /// Something whose state does not allow it, in the words that KubeVirt has for it.
    pub(super) fn wrong_state(&mut self, at: &At, words: String) {
        self.add(Reason::WrongState, at, words);
    }
}

fn cut(value: &str) -> String {
    let mut cut: String = value.chars().take(VALUE).map(printable).collect();
    if cut.len() < value.len() && value.chars().nth(VALUE).is_some() {
        cut.push('…');
    }
    cut
}

/// A path may hold what a user made up: it keeps its end, which tells most.
fn cut_path(path: &str) -> String {
    let count = path.chars().count();
    let kept: String = path
        .chars()
        .skip(count.saturating_sub(4 * VALUE))
        .map(printable)
        .collect();
    if count > 4 * VALUE { format!("…{kept}") } else { kept }
}

fn printable(c: char) -> char {
    if c.is_control() { '\u{fffd}' } else { c }
}
