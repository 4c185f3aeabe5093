//! Consistent certificate lifetimes, derived from the configured ones.

use std::time::Duration;

use crate::configuration::{Certificates, Lifetime};

/// Minimum lifetime of an authority.
const SHORTEST: Duration = Duration::from_secs(4);
/// Maximum lifetime of an authority: longer than needed, and short enough for every calendar.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Time after which every API server has seen a change of a webhook configuration.
const SETTLE: Duration = Duration::from_secs(30);

/// Lifetimes of the certificates and when they are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Lifetime of the authority.
    pub authority: Lifetime,
    /// Lifetime of the serving certificates.
    pub serving: Lifetime,
    /// Time for which a bundle must have been observed in the webhook configurations before a replica serves a
    /// certificate that only this bundle makes trusted.
    pub settle: Duration,
}

impl From<&Certificates> for Lifetimes {
    /// Returns the configured lifetimes, adjusted where they are impossible:
    ///
    /// - an authority lives from 4 seconds to ten years, a serving certificate at most half as long as its authority,
    ///   so that the certificate can be used for its full lifetime;
    /// - an authority is renewed while it can still sign for a full serving lifetime, and not before an eighth of its
    ///   own lifetime has passed, so that bundles stay small;
    /// - a serving certificate is renewed while there is time to do it (a quarter of its lifetime or a minute), and
    ///   not before an eighth of its lifetime has passed.
    fn from(configured: &Certificates) -> Self {
        let Certificates { ca, server } = configured;
        let life = ca.duration.clamp(SHORTEST, LONGEST);
        let serving_life = server.duration.clamp(SHORTEST / 2, life / 2);
        let least = (serving_life / 4).min(Duration::from_secs(60));
        let authority = Lifetime {
            duration: life,
            renew_before: ca.renew_before.clamp(serving_life, life / 8 * 7),
        };
        let serving = Lifetime {
            duration: serving_life,
            renew_before: server.renew_before.clamp(least, serving_life / 8 * 7),
        };
        // There must be time to introduce one authority before the next.
        let between = authority.duration - authority.renew_before;
        Self {
            authority,
            serving,
            settle: SETTLE.min(serving.renew_before / 3).min(between / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::configuration::Configuration;

    fn lifetimes(ca: (u64, u64), server: (u64, u64)) -> Lifetimes {
        let lifetime = |(duration, renew_before)| Lifetime {
            duration: Duration::from_secs(duration),
            renew_before: Duration::from_secs(renew_before),
        };
        Lifetimes::from(&Certificates {
            ca: lifetime(ca),
            server: lifetime(server),
        })
    }

    #[test]
    fn the_defaults_are_as_documented() {
        let hour = 3600;
        let defaults = Lifetimes::from(&Configuration::default().certificates);
        assert_eq!(defaults, lifetimes((48 * hour, 24 * hour), (24 * hour, 12 * hour)));
        assert_eq!(defaults.authority.duration, Duration::from_secs(48 * hour));
        assert_eq!(defaults.authority.renew_before, Duration::from_secs(24 * hour));
        assert_eq!(defaults.serving.renew_before, Duration::from_secs(12 * hour));
        assert_eq!(defaults.settle, Duration::from_secs(30));
    }

    #[test]
    fn infeasible_certificate_lifetimes_are_adjusted() {
        let short = lifetimes((10, 1), (60, 59));
        assert_eq!(short.serving.duration, Duration::from_secs(5));
        assert_eq!(short.authority.renew_before, Duration::from_secs(5));
        let eager = lifetimes((3600, 3599), (600, 599));
        assert_eq!(eager.authority.renew_before, Duration::from_secs(3150));
        assert_eq!(eager.serving.renew_before, Duration::from_secs(525));
        let late = lifetimes((86400, 43200), (3600, 1));
        assert_eq!(late.serving.renew_before, Duration::from_secs(60));
        assert_eq!(late.settle, Duration::from_secs(20));
    }

    proptest! {
        #[test]
        fn certificate_lifetime_fits_into_the_authority_lifetime(
            ca in 0u64..u64::MAX, ca_before in 0u64..u64::MAX, server in 0u64..u64::MAX, before in 0u64..u64::MAX,
        ) {
            let Lifetimes { authority, serving, settle } = lifetimes((ca, ca_before), (server, before));
            prop_assert!(serving.duration <= authority.renew_before);
            prop_assert!(authority.renew_before < authority.duration);
            prop_assert!(serving.renew_before < serving.duration);
            prop_assert!(settle > Duration::ZERO && settle < serving.renew_before);
            prop_assert!(settle < authority.duration - authority.renew_before);
        }
    }
}
