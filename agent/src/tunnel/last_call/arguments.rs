//! Finds the flags in the arguments of a migration's last call.
//!
//! The arguments are parsed from the start, as the other libvirtd decodes them (XDR, RFC 4506; the structures are those
//! of libvirt's `remote_protocol.x`), and must end exactly at the end of the body. Only this ensures that both sides
//! read the flags from the same position.

/// Maximum number of parameters of a call (`REMOTE_DOMAIN_MIGRATE_PARAM_LIST_MAX`).
const MOST_PARAMETERS: u32 = 64;

/// Flags of a last call, and whether the migration has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastCallFlags {
    /// Offset of the low 32 bits of the flags in the body.
    pub(super) flags_at: usize,
    /// The low 32 bits of the flags.
    pub(super) flags: u32,
    /// Whether the migration has failed.
    pub(super) cancelled: bool,
}

/// Returns the flags in the body of a call of `procedure`, which is one of [`super::LAST_CALLS`].
///
/// Returns `None` if the arguments do not match the procedure.
pub(super) fn decision(procedure: u32, body: &[u8]) -> Option<LastCallFlags> {
    let mut arguments = ArgumentReader { body, at: 0 };
    match procedure {
        // remote_domain_migrate_finish3_params_args
        306 => {
            let count = arguments.word()?;
            if count > MOST_PARAMETERS {
                return None;
            }
            for _ in 0..count {
                arguments.opaque()?;
                arguments.value()?;
            }
            arguments.opaque()?;
        }
        // remote_domain_migrate_finish3_args
        217 => {
            arguments.opaque()?;
            arguments.opaque()?;
            arguments.optional()?;
            arguments.optional()?;
            // Skips the high 32 bits of the flags.
            arguments.word()?;
        }
        _ => return None,
    }
    let flags_at = arguments.at;
    let flags = arguments.word()?;
    let cancelled = arguments.word()? != 0;
    (arguments.at == body.len()).then_some(LastCallFlags {
        flags_at,
        flags,
        cancelled,
    })
}

struct ArgumentReader<'a> {
    body: &'a [u8],
    at: usize,
}

impl ArgumentReader<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.at = self.at.checked_add(bytes).filter(|at| *at <= self.body.len())?;
        Some(())
    }

    fn word(&mut self) -> Option<u32> {
        let bytes = self.body.get(self.at..)?.first_chunk()?;
        self.at += 4;
        Some(u32::from_be_bytes(*bytes))
    }

    /// Skips a string or bytes: their length, then the content, padded to a multiple of 4.
    fn opaque(&mut self) -> Option<()> {
        let length = usize::try_from(self.word()?).ok()?;
        self.skip(length.checked_next_multiple_of(4)?)
    }

    /// Skips an optional string.
    fn optional(&mut self) -> Option<()> {
        match self.word()? {
            0 => Some(()),
            1 => self.opaque(),
            _ => None,
        }
    }

    /// Skips the value of a parameter, preceded by its type (`virTypedParameterType`).
    fn value(&mut self) -> Option<()> {
        match self.word()? {
            // int, unsigned int, boolean
            1 | 2 | 6 => self.skip(4),
            // long long, unsigned long long, double
            3..=5 => self.skip(8),
            // string
            7 => self.opaque(),
            _ => None,
        }
    }
}
