//! Enums whose values have libvirt's numbers and libvirt's words.

/// An enum over a C constant's type: its variants, their numbers, and the words by which `virsh`
/// names them. A number that libvirt gains later is kept as `Unknown`.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $constant:path => $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = concat!("libvirt's \"", $word, "\".")] $variant,)+
            /// libvirt's "unknown", or a number that has no name here.
            Unknown(i32),
        }

        impl $name {
            /// The value that libvirt's number stands for.
            pub fn from_raw(raw: i32) -> Self {
                // The constants are unsigned in the bindings, and all of them small.
                $(if i64::from(raw) == i64::from($constant) {
                    return Self::$variant;
                })+
                Self::Unknown(raw)
            }

            /// libvirt's word for it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Unknown(_) => "unknown",
                }
            }

            /// Everything that has a name.
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

pub(crate) use words;
