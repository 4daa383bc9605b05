//! A certificate of our own making, for nodes that were given none.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

/// Stands in the certificates that are made here, so that no other is ever replaced.
const MAKER: &str = "mainstay self-signed";
/// For so long it is good.
const VALID: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// With less than this left, a new one is made.
const RENEW: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// It cannot be made, or not be written.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// The disk refused.
    #[error("cannot write {path}: {source}; choose another --cert-dir, or give tlsCertFile and tlsPrivateKeyFile", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A name that no certificate can have.
    #[error(
        "cannot make a serving certificate for {names:?}: {source}; check --hostname-override and --node-ip"
    )]
    Make {
        /// The names.
        names: Vec<String>,
        /// What is wrong.
        source: rcgen::Error,
    },
}

/// Makes sure that `<dir>/kubelet.crt` and `<dir>/kubelet.key` are there and a pair. A certificate that somebody else put there is
/// used as it is; what mainstay made is made anew when it is not good for all these names and addresses, will soon be too old, or
/// does not go with its key (a start that was cut short). What is no certificate at all is set aside: it stops nothing. Returns
/// both paths.
///
/// # Errors
/// [`SelfSignedError`].
pub fn ensure(dir: &Path, names: &[String]) -> Result<(PathBuf, PathBuf), SelfSignedError> {
    let (certificate, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    match fs::read(&certificate) {
        Ok(pem) => match whose(&pem) {
            Whose::Others => {
                tracing::info!(path = %certificate.display(), "serving with the certificate that is there, which is not of mainstay's making");
                return Ok((certificate, key));
            }
            Whose::Ours if is_good(&pem, names, UnixTime::now()) => {
                match super::certified(&pem, &key, &ring::default_provider()) {
                    Ok(_) => return Ok((certificate, key)),
                    Err(problem) => {
                        tracing::warn!(path = %certificate.display(), problem, "the serving certificate cannot be used; making another");
                    }
                }
            }
            Whose::Ours => {}
            Whose::Nobodys => {
                set_aside(&certificate)?;
                set_aside(&key)?;
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(SelfSignedError::Io { path: certificate, source }),
    }
    let (certificate_pem, key_pem) =
        make(names).map_err(|source| SelfSignedError::Make { names: names.to_vec(), source })?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|source| SelfSignedError::Io { path: dir.to_owned(), source })?;
    // Whatever interrupts this leaves two that are no pair, which the next start sees, or a key alone.
    write(&key, &key_pem, 0o600)?;
    write(&certificate, &certificate_pem, 0o644)?;
    tracing::info!(path = %certificate.display(), ?names, "made a serving certificate; clients must be told to trust it");
    Ok((certificate, key))
}

fn make(names: &[String]) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::default();
    let name = names.first().map_or("mainstay", String::as_str);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, MAKER);
    for name in names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = std::time::SystemTime::now();
    // A client whose clock is a little behind shall not find it from the future.
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after = (now + VALID).into();
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", key.serialized_der())))
}

/// Who made what is in the file.
enum Whose {
    Ours,
    Others,
    /// There is no certificate in it.
    Nobodys,
}

fn whose(pem: &[u8]) -> Whose {
    let Some(Ok(certificate)) = CertificateDer::pem_slice_iter(pem).next() else { return Whose::Nobodys };
    if mainstay_auth::organizations(&certificate).iter().any(|name| name == MAKER) {
        Whose::Ours
    } else {
        Whose::Others
    }
}

/// Renames what cannot be used, so that whoever wants it finds it.
fn set_aside(path: &Path) -> Result<(), SelfSignedError> {
    let seconds = UnixTime::now().as_secs();
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".bad-{seconds}"));
    match fs::rename(path, &name) {
        Ok(()) => {
            tracing::warn!(path = %path.display(), to = %Path::new(&name).display(), "there is no certificate in it, or it is the key of none; it was set aside");
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SelfSignedError::Io { path: path.to_owned(), source }),
    }
}

/// Bytes as text, in lines of 64 characters.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    let encoded = STANDARD.encode(bytes);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at_checked(64).unwrap_or((rest, ""));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Whether a certificate can still be shown a while from now, under each of these names.
fn is_good(pem: &[u8], names: &[String], now: UnixTime) -> bool {
    let Some(Ok(certificate)) = CertificateDer::pem_slice_iter(pem).next() else { return false };
    let mut roots = RootCertStore::empty();
    if roots.add(certificate.clone()).is_err() {
        return false;
    }
    let provider = Arc::new(ring::default_provider());
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build() else {
        return false;
    };
    let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + RENEW);
    names.iter().all(|name| {
        ServerName::try_from(name.as_str()).is_ok_and(|name| {
            [now, later]
                .into_iter()
                .all(|time| verifier.verify_server_cert(&certificate, &[], &name, &[], time).is_ok())
        })
    })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), SelfSignedError> {
    let failed = |source| SelfSignedError::Io { path: path.to_owned(), source };
    let new = path.with_extension("new");
    // One that an interrupted start left behind may have another mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new).map_err(failed)?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_kept_while_it_is_good_for_all_names() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let first = names(&["node-1", "192.0.2.7", "2001:db8::7"]);
        let (certificate, key) = ensure(&pki, &first).unwrap();
        let made = fs::read(&certificate).unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);

        ensure(&pki, &first).unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), made, "nothing to renew");
        ensure(&pki, &names(&["node-1"])).unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), made, "still good for the name that is left");
        ensure(&pki, &names(&["node-1", "192.0.2.8"])).unwrap();
        let renewed = fs::read(&certificate).unwrap();
        assert_ne!(renewed, made, "an address came");
        fs::remove_file(&key).unwrap();
        ensure(&pki, &first).unwrap();
        assert!(key.is_file() && is_good(&fs::read(&certificate).unwrap(), &first, UnixTime::now()));
    }

    #[test]
    fn what_others_put_there_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("kubelet.crt"), dir.path().join("kubelet.key"));
        let own = KeyPair::generate().unwrap();
        let theirs = CertificateParams::new(vec!["other".into()]).unwrap().self_signed(&own).unwrap();
        let theirs = pem("CERTIFICATE", theirs.der());
        fs::write(&certificate, &theirs).unwrap();
        fs::write(&key, "their key").unwrap();
        ensure(dir.path(), &["node-1".into()]).unwrap();
        assert_eq!(fs::read_to_string(&certificate).unwrap(), theirs);
        assert_eq!(fs::read_to_string(&key).unwrap(), "their key");
    }

    #[test]
    fn what_cannot_be_used_is_made_anew_and_what_is_no_certificate_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("kubelet.crt"), dir.path().join("kubelet.key"));
        let names = ["node-1".to_owned()];
        let is_pair = || {
            let pem = fs::read(&certificate).unwrap();
            super::super::certified(&pem, &key, &ring::default_provider()).is_ok()
        };
        for garbage in ["", "garbage", "-----BEGIN CERTIFICATE-----\n"] {
            fs::write(&certificate, garbage).unwrap();
            fs::write(&key, "some key").unwrap();
            ensure(dir.path(), &names).unwrap();
            assert!(is_pair(), "{garbage:?}");
        }
        let aside =
            fs::read_dir(dir.path()).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let aside: Vec<String> = aside.filter(|name| name.contains(".bad-")).collect();
        assert!(aside.iter().any(|name| name.starts_with("kubelet.key.bad-")), "{aside:?}");

        let made = fs::read(&certificate).unwrap();
        fs::write(&key, "corrupt").unwrap();
        ensure(dir.path(), &names).unwrap();
        assert!(is_pair());
        // Killed between the two renames: another key beside the old certificate.
        let other = tempfile::tempdir().unwrap();
        ensure(other.path(), &names).unwrap();
        fs::copy(other.path().join("kubelet.key"), &key).unwrap();
        assert!(!is_pair());
        ensure(dir.path(), &names).unwrap();
        assert!(is_pair());
        assert_ne!(fs::read(&certificate).unwrap(), made);
    }

    #[test]
    fn one_that_will_soon_be_too_old_is_not_good() {
        let names = vec!["node-1".to_owned()];
        let (pem, _) = make(&names).unwrap();
        let at = |days: u64| {
            let now = Duration::from_secs(UnixTime::now().as_secs() + days * 24 * 60 * 60);
            is_good(pem.as_bytes(), &names, UnixTime::since_unix_epoch(now))
        };
        assert!(at(0));
        assert!(at(300));
        assert!(!at(340));
        assert!(!at(400));
    }
}
