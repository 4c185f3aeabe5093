//! The certificates of a replica: its observed state and its decisions, without I/O.

use std::{collections::BTreeMap, sync::Arc};

use drydock_core::certificates::{
    self, Authority, Id, Lifetimes, Make, PublishedBundle, PublishedTrust, RenewalInput, RenewalStep, ServingChange,
    choose,
};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use tracing::{info, warn};

use super::{
    BUNDLE, CERTIFICATE, KEY, SIGNER_KEY, ServedCertificate,
    made::{self, MakeError},
    metrics::{CertificateKind, CertificateMetrics},
    read::{self, Contents, Servable, Unusable},
};

/// The data of a Secret.
pub(super) type Data = BTreeMap<String, ByteString>;

/// An action of the leader on objects in the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CertificateAction {
    /// Write the Secret if it has not changed since it was observed.
    Write(Data),
    /// Write this bundle to all objects that hold bundles.
    Publish(Vec<u8>),
}

/// The next action of the leader, and the time of the next reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NextStep {
    /// The next action of the leader, if there is one.
    pub(super) action: Option<CertificateAction>,
    /// Time of the next reconcile, even if nothing changes.
    pub(super) wake: Option<Timestamp>,
}

/// Last observed bundles and Secret, as far as they are known.
#[derive(Debug, Default, PartialEq, Eq)]
struct ObservedCertificates {
    bundles: Option<Vec<Vec<u8>>>,
    secret: Option<Option<Data>>,
}

/// Keeps the certificates of one replica.
#[derive(Debug)]
pub(super) struct CertificateKeeper {
    secret: &'static str,
    names: Vec<String>,
    lifetimes: Lifetimes,
    seen: ObservedCertificates,
    /// Bundles that API servers trust; `None` if they are not known yet.
    places: Option<Vec<PublishedBundle>>,
    trust: PublishedTrust,
    /// Contents of the Secret; `None` if they are not known yet.
    contents: Option<Contents>,
    /// Problems that were logged last.
    logged_problems: Vec<(&'static str, Unusable)>,
    serving: Option<Arc<Servable>>,
    served: ServedCertificate,
    metrics: CertificateMetrics,
}

impl CertificateKeeper {
    /// Creates a keeper that has not observed the Secret with this name yet. Its certificates are valid for all of
    /// these DNS names.
    pub(super) fn new(
        secret: &'static str,
        names: Vec<String>,
        lifetimes: Lifetimes,
        served: ServedCertificate,
        metrics: CertificateMetrics,
    ) -> Self {
        Self {
            secret,
            names,
            lifetimes,
            seen: ObservedCertificates::default(),
            places: None,
            trust: PublishedTrust::default(),
            contents: None,
            logged_problems: Vec::new(),
            serving: None,
            served,
            metrics,
        }
    }

    /// Sets the lifetimes of new certificates.
    pub(super) fn configure(&mut self, lifetimes: Lifetimes) {
        if self.lifetimes != lifetimes {
            info!(?lifetimes, "the lifetimes of webhook certificates have changed");
            self.lifetimes = lifetimes;
        }
    }

    /// Records the bundles of all webhooks and the Secret; `Some(None)` means that the Secret does not exist.
    pub(super) fn observe(&mut self, now: Timestamp, bundles: Option<Vec<Vec<u8>>>, secret: Option<Option<&Data>>) {
        let seen = ObservedCertificates {
            bundles,
            secret: secret.map(Option::<&Data>::cloned),
        };
        // Signatures are verified only if the observed state has changed.
        if self.seen != seen {
            self.read(&seen);
            self.seen = seen;
        }
        self.trust.observe(now, self.places.clone());
    }

    fn read(&mut self, seen: &ObservedCertificates) {
        let mut read: BTreeMap<&[u8], PublishedBundle> = BTreeMap::new();
        let mut place = |pem| {
            let place = read.entry(pem).or_insert_with(|| {
                let (authorities, has_foreign) = read::bundle(pem);
                PublishedBundle {
                    authorities,
                    has_foreign,
                }
            });
            place.clone()
        };
        let bundles = seen.bundles.as_ref();
        self.places = bundles.map(|bundles| bundles.iter().map(|pem| place(pem.as_slice())).collect());
        let Some(secret) = &seen.secret else { return };
        let published = self.places.iter().flatten().flat_map(|place| &place.authorities);
        let contents = read::secret(secret.as_ref(), &self.names, published);
        if contents.unusable != self.logged_problems {
            for (key, why) in &contents.unusable {
                let (reason, sentence) = (why.reason(), why.sentence());
                warn!(
                    key,
                    secret = self.secret,
                    reason,
                    "could not use the certificates in the Secret: {sentence}"
                );
            }
            self.logged_problems.clone_from(&contents.unusable);
        }
        self.contents = Some(contents);
    }

    /// Serves the Secret's certificate if it is better than the one in use. Returns the time of the next reconcile.
    pub(super) fn serve(&mut self, now: Timestamp) -> Option<Timestamp> {
        let offered = self.contents.as_ref().and_then(|contents| contents.serving.clone());
        let current = self.serving.as_ref().map(|serving| &serving.facts);
        let choice = choose(
            now,
            current,
            offered.as_ref().map(|offered| &offered.facts),
            &self.trust,
            &self.lifetimes,
        );
        if let Some(offered) = offered.filter(|_| choice.take) {
            info!(until = %offered.facts.until, "serving a new webhook certificate");
            self.served.replace(Arc::clone(&offered.certified));
            self.metrics.until.set(offered.facts.until.as_second());
            self.serving = Some(offered);
        }
        choice.wake
    }

    /// Returns the leader's next action.
    pub(super) fn next(&self, now: Timestamp) -> Result<NextStep, MakeError> {
        let facts = RenewalInput {
            held: self.contents.as_ref().map(|contents| &contents.held),
            served: self.serving.as_ref().map(|serving| &serving.facts),
            trust: &self.trust,
        };
        let plan = certificates::plan(now, facts, &self.lifetimes);
        let action = match (plan.step, &self.contents) {
            (Some(RenewalStep::Publish { bundle }), _) => Some(CertificateAction::Publish(pem(&bundle))),
            (
                Some(RenewalStep::Write {
                    signer,
                    bundle,
                    serving,
                }),
                Some(contents),
            ) => Some(CertificateAction::Write(
                self.write(now, contents, signer, &bundle, serving)?,
            )),
            _ => None,
        };
        let wake = plan.wake;
        Ok(NextStep { action, wake })
    }

    /// Returns the data of the Secret to write.
    fn write(
        &self,
        now: Timestamp,
        contents: &Contents,
        signer: Option<Make>,
        bundle: &[Id],
        serving: ServingChange,
    ) -> Result<Data, MakeError> {
        let mut ids = bundle.to_vec();
        let mut signing: Option<(Authority, String)> = contents.held.signer.clone().zip(contents.signer_key.clone());
        if let Some(make) = signer {
            let (reason, sentence) = (make.cause.reason(), make.cause.sentence());
            info!(
                secret = self.secret,
                until = %make.until,
                reason,
                "creating a new certificate authority: {sentence}"
            );
            let (authority, made) = made::authority(now, make.until)?;
            self.metrics.made(CertificateKind::Authority, make.cause);
            ids.insert(0, authority.id.clone());
            signing = Some((authority, made.key));
        }
        let mut entries = vec![(BUNDLE, pem(&ids))];
        entries.extend(signing.iter().map(|(_, key)| (SIGNER_KEY, key.clone().into_bytes())));
        let kept = match serving {
            ServingChange::Keep => contents.serving.as_ref(),
            ServingChange::Carry => self.serving.as_ref(),
            ServingChange::Sign(_) => None,
        };
        if let Some(kept) = kept {
            entries.extend([(CERTIFICATE, kept.certificate.clone()), (KEY, kept.key.clone())]);
        }
        if let (ServingChange::Sign(make), Some((signer, key))) = (serving, &signing) {
            let (reason, sentence) = (make.cause.reason(), make.cause.sentence());
            info!(secret = self.secret, until = %make.until, reason, "creating a new certificate: {sentence}");
            let made = made::serving(now, make.until, &self.names, &signer.id, key)?;
            self.metrics.made(CertificateKind::Serving, make.cause);
            entries.extend([
                (CERTIFICATE, made.certificate.into_bytes()),
                (KEY, made.key.into_bytes()),
            ]);
        }
        Ok(entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), ByteString(value)))
            .collect())
    }
}

/// Returns certificates as PEM.
fn pem(bundle: &[Id]) -> Vec<u8> {
    bundle.iter().flat_map(|id| made::pem(id.der()).into_bytes()).collect()
}
