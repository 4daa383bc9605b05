use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::*;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let encoded = STANDARD.encode(params.self_signed(&key).unwrap().der());
    let pem = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
    Ca { issuer: Issuer::new(params, key), pem }
}

fn client(ca: &Ca, adjust: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    adjust(&mut params);
    params.signed_by(&KeyPair::generate().unwrap(), &ca.issuer).unwrap().der().clone()
}

#[test]
fn a_certificate_of_the_authority_names_user_and_groups() {
    let ours = ca("ours");
    let authorities = Authorities::from_pem(ours.pem.as_bytes()).unwrap();
    let bob = client(&ours, |params| {
        params.distinguished_name.push(DnType::CommonName, "bob");
        params.distinguished_name.push(DnType::OrganizationName, "team1");
    });
    let found = authorities.identify(&[bob], UnixTime::now()).unwrap().unwrap().authenticated();
    assert_eq!(found.user, "bob");
    assert_eq!(found.groups, ["team1", "system:authenticated"]);
    assert_eq!(found.uid, None);
    let id = found.extra.get(CREDENTIAL_ID).unwrap().join("");
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{id}");

    let nameless = client(&ours, |_| {});
    assert_eq!(authorities.identify(&[nameless], UnixTime::now()).unwrap(), None);
    assert_eq!(authorities.identify(&[], UnixTime::now()).unwrap(), None);
}

#[test]
fn strangers_and_expired_and_servers_are_refused() {
    let (ours, theirs) = (ca("ours"), ca("theirs"));
    let authorities = Authorities::from_pem(ours.pem.as_bytes()).unwrap();
    let named = |params: &mut CertificateParams| params.distinguished_name.push(DnType::CommonName, "eve");
    let foreign = client(&theirs, named);
    let expired = client(&ours, |params| {
        named(params);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let server = client(&ours, |params| {
        named(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    for (what, certificate) in [("foreign", foreign), ("expired", expired), ("server", server)] {
        let found = authorities.identify(&[certificate], UnixTime::now());
        assert!(matches!(found, Err(CertificateError::Rejected(_))), "{what}: {found:?}");
    }
    let garbage = CertificateDer::from(vec![0x30, 0x03, 1, 2, 3]);
    assert!(authorities.identify(&[garbage], UnixTime::now()).is_err());
}

#[test]
fn a_bundle_must_hold_an_authority() {
    assert!(matches!(Authorities::from_pem(b""), Err(BundleError::Empty)));
    assert!(matches!(Authorities::from_pem(b"hello"), Err(BundleError::Empty)));
    let broken = b"-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n";
    assert!(Authorities::from_pem(broken).is_err());
}
