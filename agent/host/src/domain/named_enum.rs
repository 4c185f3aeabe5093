//! Enums with libvirt's numbers and names.

/// Defines an enum over the type of a C constant: its variants, their numbers, and the names that `virsh` prints.
///
/// A number that a later libvirt added is kept as `Unknown`.
macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $constant:path => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = concat!("libvirt's \"", $text, "\".")] $variant,)+
            /// libvirt's "unknown", or a number without a name in this enum.
            Unknown(i32),
        }

        impl $name {
            /// Converts libvirt's number to the enum.
            pub fn from_raw(raw: i32) -> Self {
                // The constants are unsigned in the bindings, and all of them are small.
                $(if i64::from(raw) == i64::from($constant) {
                    return Self::$variant;
                })+
                Self::Unknown(raw)
            }

            /// Returns libvirt's name of the value.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Unknown(_) => "unknown",
                }
            }

            /// All named values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    Self::Unknown(raw) if *raw != 0 => write!(f, "unknown ({raw})"),
                    known => f.write_str(known.as_str()),
                }
            }
        }
    };
}

pub(crate) use named_enum;
