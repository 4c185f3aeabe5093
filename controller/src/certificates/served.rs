//! The certificate of TLS handshakes, as server and as client of agents, replaced while connections continue.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use drydock_runtime::ReadyHandle;
use rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

/// The certificate that is served now; none at first. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct ServedCertificate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    certificate: RwLock<Option<Arc<CertifiedKey>>>,
    ready: Mutex<Option<ReadyHandle>>,
}

impl ServedCertificate {
    /// None yet; `ready` is released when there is the first.
    pub(crate) fn new(ready: ReadyHandle) -> Self {
        Self(Arc::new(Inner {
            certificate: RwLock::new(None),
            ready: Mutex::new(Some(ready)),
        }))
    }

    /// Handshakes get this one from now on.
    pub(super) fn replace(&self, certificate: Arc<CertifiedKey>) {
        *self.0.certificate.write().unwrap_or_else(PoisonError::into_inner) = Some(certificate);
        let ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ready) = ready {
            ready.release();
        }
    }
}

impl ServedCertificate {
    fn current(&self) -> Option<Arc<CertifiedKey>> {
        let certificate = self.0.certificate.read().unwrap_or_else(PoisonError::into_inner);
        certificate.clone()
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

/// To agents, a controller is a client.
impl ResolvesClientCert for ServedCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        true
    }
}
