//! Serves a certificate from files, and replaces it when the files change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drydock_runtime::{CancellationToken, chain, tls_port::ServedCertificate};
use rustls::{
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    sign::CertifiedKey,
};
use thiserror::Error;
use tracing::{info, warn};

/// Names of the files, as in Secrets of the type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Interval of checks of the files. The kubelet updates a mounted Secret within about 90 seconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Reason why a pair of files cannot be served.
#[derive(Debug, Error)]
enum CertificateError {
    #[error("{} cannot be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{CERTIFICATE} in {} cannot be parsed as PEM", folder.display())]
    Certificate { folder: PathBuf, source: pem::Error },
    #[error("{CERTIFICATE} in {} contains no certificate", folder.display())]
    Empty { folder: PathBuf },
    #[error("{KEY} in {} contains no valid PEM key", folder.display())]
    Key { folder: PathBuf, source: pem::Error },
    #[error("{KEY} in {} does not match {CERTIFICATE}, or the type of the key is not supported", folder.display())]
    Pair { folder: PathBuf, source: rustls::Error },
}

/// Content of both files.
#[derive(PartialEq, Eq)]
struct Files {
    folder: PathBuf,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Reads the files of the first folder that has both.
    fn read(folders: &[PathBuf]) -> Result<Option<Self>, CertificateError> {
        for folder in folders {
            let (certificate, key) = (content(&folder.join(CERTIFICATE))?, content(&folder.join(KEY))?);
            if let (Some(certificate), Some(key)) = (certificate, key) {
                return Ok(Some(Self {
                    folder: folder.clone(),
                    certificate,
                    key,
                }));
            }
        }
        Ok(None)
    }

    /// Returns the certificate and the key for TLS handshakes.
    fn certified(&self) -> Result<CertifiedKey, CertificateError> {
        let folder = || self.folder.clone();
        let certificates = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.map_err(|source| CertificateError::Certificate {
            folder: folder(),
            source,
        })?;
        if certificates.is_empty() {
            return Err(CertificateError::Empty { folder: folder() });
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|source| CertificateError::Key {
            folder: folder(),
            source,
        })?;
        let pair = CertifiedKey::from_der(certificates, key, &ring::default_provider());
        pair.map_err(|source| CertificateError::Pair {
            folder: folder(),
            source,
        })
    }
}

/// Returns the content of a file. Returns `None` if the file does not exist or is empty.
fn content(path: &Path) -> Result<Option<Vec<u8>>, CertificateError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content).filter(|content| !content.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CertificateError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Serves the certificate of the first folder with both files, until `stopping`. An unusable certificate does not
/// replace the previous one.
pub(super) async fn keep(folders: Vec<PathBuf>, served: ServedCertificate, stopping: CancellationToken) {
    let mut shown = None;
    let mut complaint = String::new();
    loop {
        let checked = Files::read(&folders).and_then(|files| match files {
            Some(files) if shown.as_ref() != Some(&files) => {
                served.replace(Arc::new(files.certified()?));
                info!(folder = %files.folder.display(), "a new certificate is served");
                shown = Some(files);
                Ok(())
            }
            _ => Ok(()),
        });
        let problem = checked
            .err()
            .map_or_else(String::new, |error| chain(&error).to_string());
        if problem != complaint && !problem.is_empty() {
            warn!(error = problem, "a certificate cannot be used");
        }
        complaint = problem;
        if stopping
            .run_until_cancelled(tokio::time::sleep(CHECK_INTERVAL))
            .await
            .is_none()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::Readiness;
    use tokio::time::sleep;

    use super::*;

    /// Returns a certificate and its key.
    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    /// Temporary folders that are removed when the test ends.
    struct Folders(PathBuf);

    impl Folders {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("drydock-console-{name}-{}", std::process::id()));
            let folders = Self(folder);
            for path in folders.paths() {
                fs::create_dir_all(path).unwrap();
            }
            folders
        }

        fn paths(&self) -> Vec<PathBuf> {
            vec![self.0.join("own"), self.0.join("made")]
        }

        fn write(&self, folder: &str, certificate: &str, key: &str) {
            fs::write(self.0.join(folder).join(CERTIFICATE), certificate).unwrap();
            fs::write(self.0.join(folder).join(KEY), key).unwrap();
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn first_folder_with_a_pair_is_read() {
        let folders = Folders::new("order");
        let (first, other) = (pair(), pair());
        let read = || Files::read(&folders.paths()).unwrap().map(|files| files.folder);
        assert_eq!(read(), None);
        folders.write("made", &first.0, &first.1);
        assert_eq!(read(), Some(folders.0.join("made")));
        // cert-manager creates a Secret with empty values before it has issued the certificate.
        folders.write("own", "", "");
        assert_eq!(read(), Some(folders.0.join("made")));
        folders.write("own", &other.0, &other.1);
        assert_eq!(read(), Some(folders.0.join("own")));
    }

    #[test]
    fn unusable_certificate_pair_is_refused_with_the_folder() {
        let (first, other) = (pair(), pair());
        for (certificate, key, expected) in [
            (
                first.0.as_str(),
                other.1.as_str(),
                "tls.key in /x does not match tls.crt",
            ),
            (&first.0, "no key", "tls.key in /x contains no valid PEM key"),
            ("no certificate", &first.1, "tls.crt in /x contains no certificate"),
        ] {
            let files = Files {
                folder: "/x".into(),
                certificate: certificate.as_bytes().to_vec(),
                key: key.as_bytes().to_vec(),
            };
            let error = files
                .certified()
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_certificate_is_served_unless_invalid() {
        let folders = Folders::new("change");
        let (first, other) = (pair(), pair());
        let readiness = Readiness::new();
        let served = ServedCertificate::new(readiness.handle("certificate"));
        let stopping = CancellationToken::new();
        let task = keep(folders.paths(), served.clone(), stopping.clone());
        let check = async {
            let current = || {
                let key = served.current()?;
                Some(key.cert.first()?.to_vec())
            };
            let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec();
            sleep(CHECK_INTERVAL / 2).await;
            assert!(!readiness.is_ready() && current().is_none());
            folders.write("made", &first.0, &first.1);
            sleep(CHECK_INTERVAL).await;
            assert!(readiness.is_ready());
            assert_eq!(current(), Some(der(&first.0)));
            folders.write("made", &other.0, &first.1);
            sleep(CHECK_INTERVAL).await;
            assert_eq!(current(), Some(der(&first.0)), "the pair does not match");
            folders.write("made", &other.0, &other.1);
            sleep(CHECK_INTERVAL).await;
            assert_eq!(current(), Some(der(&other.0)));
            stopping.cancel();
        };
        tokio::join!(task, check);
    }
}
