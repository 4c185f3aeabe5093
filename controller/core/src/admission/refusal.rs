//! Reasons for refusing an object.

use std::fmt;

use super::VERSION;

/// Maximum length of a value in a message, in characters; longer values are truncated.
const VALUE: usize = 80;
/// Maximum number of refusals in one response; more would not help.
pub const MAX_REFUSALS: usize = 50;

/// Machine-readable reason of a refusal. Stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdmissionReason {
    /// KubeVirt has this field or value, Drydock does not.
    NotSupported,
    /// The field does not exist.
    UnknownField,
    /// The field or value cannot be parsed.
    Malformed,
    /// The value is not among those allowed.
    NotAllowed,
    /// The field is missing.
    Required,
    /// The value is used twice.
    Duplicate,
    /// The field contradicts another one.
    Conflict,
    /// The field is reserved for another user.
    Reserved,
    /// The field cannot be changed.
    Immutable,
    /// The object that the field names is in the wrong state.
    WrongState,
}

impl AdmissionReason {
    /// Returns the stable string: the cause type of KubeVirt or Kubernetes, if one exists.
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

/// One reason for refusing an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRefusal {
    /// Machine-readable reason.
    pub reason: AdmissionReason,
    /// Path of the field, such as `spec.domain.devices.disks[0].name`.
    pub field: String,
    /// A human-readable sentence that names the field, the value and the allowed values.
    pub message: String,
}

impl AdmissionRefusal {
    /// Returns the message without the field, which clients prepend (`kubectl`, for example, as `field: cause`).
    pub fn cause(&self) -> &str {
        let rest = self.message.strip_prefix(&self.field);
        let cause = rest.and_then(|rest| rest.strip_prefix(": ").or_else(|| rest.strip_prefix(' ')));
        cause.map_or(self.message.as_str(), |cause| {
            cause.strip_prefix("is ").unwrap_or(cause)
        })
    }
}

impl fmt::Display for AdmissionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns all refusals in one message.
pub fn sentence(refusals: &[AdmissionRefusal]) -> String {
    let mut texts: Vec<String> = refusals.iter().take(MAX_REFUSALS).map(ToString::to_string).collect();
    if let Some(more) = refusals.len().checked_sub(MAX_REFUSALS).filter(|more| *more > 0) {
        texts.push(format!("and {more} more"));
    }
    texts.join("; ")
}

/// Path of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct At(String);

impl At {
    /// Returns a path from the object's root.
    pub(super) fn root(path: &str) -> Self {
        Self(path.into())
    }

    /// Returns the path of a field of this object.
    pub(super) fn field(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// Returns the path of an entry of this map, whose keys may contain dots.
    pub(super) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// Returns the path of a member of this list.
    pub(super) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Collects refusals.
#[derive(Debug, Default)]
pub(super) struct RefusalList(Vec<AdmissionRefusal>);

impl RefusalList {
    /// Returns all collected refusals.
    pub(super) fn into_vec(self) -> Vec<AdmissionRefusal> {
        self.0
    }

    /// Returns the number of refusals.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns whether a field inside this path has already been refused.
    pub(super) fn has_refused_within(&self, at: &At) -> bool {
        self.0.iter().any(|refusal| {
            let inner = refusal.field.strip_prefix(&at.0);
            inner.is_some_and(|inner| inner.starts_with('.'))
        })
    }

    fn add(&mut self, reason: AdmissionReason, at: &At, message: String) {
        self.0.push(AdmissionRefusal {
            reason,
            field: at.0.clone(),
            message,
        });
    }

    /// Refuses a field that Drydock does not implement.
    pub(super) fn not_supported(&mut self, at: &At) {
        let message = format!("{at} is not supported by Drydock {VERSION}");
        self.add(AdmissionReason::NotSupported, at, message);
    }

    /// Refuses a value that Drydock does not implement.
    pub(super) fn value_not_supported(&mut self, at: &At, value: &str, allowed: &str) {
        let value = cut(value);
        let message = format!("{at}: `{value}` is not supported by Drydock {VERSION}; allowed: {allowed}");
        self.add(AdmissionReason::NotSupported, at, message);
    }

    /// Refuses a field that does not exist; `meant` is the suggested name.
    pub(super) fn unknown(&mut self, at: &At, kind: &str, meant: Option<&str>) {
        let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        let at = At(cut_path(&at.0));
        let message = format!("{at} is not a field of {kind}{meant}");
        self.add(AdmissionReason::UnknownField, &at, message);
    }

    /// Refuses a value that cannot be parsed.
    pub(super) fn malformed(&mut self, at: &At, why: &str) {
        let message = format!("{at} cannot be parsed: {why}");
        self.add(AdmissionReason::Malformed, at, message);
    }

    /// Refuses a value that is not allowed.
    pub(super) fn not_allowed(&mut self, at: &At, value: impl fmt::Display, allowed: impl fmt::Display) {
        let value = cut(&value.to_string());
        let message = format!("{at}: `{value}` is not allowed; allowed: {allowed}");
        self.add(AdmissionReason::NotAllowed, at, message);
    }

    /// Refuses an object because a field is missing.
    pub(super) fn required(&mut self, at: &At, why: impl fmt::Display) {
        let message = format!("{at} must be set: {why}");
        self.add(AdmissionReason::Required, at, message);
    }

    /// Refuses a value that is used twice.
    pub(super) fn duplicate(&mut self, at: &At, value: impl fmt::Display, first: &At) {
        let value = cut(&value.to_string());
        let message = format!("{at}: `{value}` is already used by {first}");
        self.add(AdmissionReason::Duplicate, at, message);
    }

    /// Refuses two fields that cannot both be set.
    pub(super) fn conflict(&mut self, at: &At, with: impl fmt::Display) {
        let message = format!("{at} cannot be set together with {with}");
        self.add(AdmissionReason::Conflict, at, message);
    }

    /// Refuses a field that only one user may set.
    pub(super) fn reserved(&mut self, at: &At, user: &str) {
        let message = format!("{at} can only be set by {user}; leave it out");
        self.add(AdmissionReason::Reserved, at, message);
    }

    /// Refuses values that are valid on their own but not in combination.
    pub(super) fn impossible(&mut self, at: &At, why: &str) {
        let message = format!("{at} is invalid: {why}");
        self.add(AdmissionReason::NotAllowed, at, message);
    }

    /// Refuses a change to an immutable field, with KubeVirt's message.
    pub(super) fn immutable(&mut self, at: &At, text: &str) {
        self.add(AdmissionReason::Immutable, at, text.into());
    }

    /// Refuses a request that an object's state does not allow, with KubeVirt's message.
    pub(super) fn wrong_state(&mut self, at: &At, text: String) {
        self.add(AdmissionReason::WrongState, at, text);
    }
}

fn cut(value: &str) -> String {
    let mut cut: String = value.chars().take(VALUE).map(printable).collect();
    if cut.len() < value.len() && value.chars().nth(VALUE).is_some() {
        cut.push('…');
    }
    cut
}

/// Truncates a path, which may contain user input. Keeps the end, which is the most useful part.
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
