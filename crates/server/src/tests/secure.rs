//! The TLS port: who gets in, and what those see who do not.

use std::sync::Arc;

use mainstay_auth::{
    ActingVerb, Authentication, Authorities, Authorization, Guard, LocalAccess, Reloaded, local::fingerprint,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{TlsSettings, ensure_self_signed, tls::pem, tls_config};

pub(super) struct Secure {
    pub(super) fixture: Fixture,
    pub(super) address: SocketAddr,
    server: CertificateDer<'static>,
    ca: Issuer<'static, KeyPair>,
}

pub(super) fn secure(settings: impl FnOnce(&mut TlsSettings)) -> Secure {
    secure_with(settings, ActingVerb::Create, |_| {})
}

pub(super) fn secure_with(
    settings: impl FnOnce(&mut TlsSettings),
    acting_verb: ActingVerb,
    change: impl FnOnce(&mut ServerConfig),
) -> Secure {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "clients");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(path("ca.crt"), pem("CERTIFICATE", params.self_signed(&key).unwrap().der())).unwrap();
    let access = format!(
        "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{{name: alice, tokenSHA256: {}}}, {{name: bob, groups: [ops], tokenSHA256: {}}}]\n\
         rules:\n- {{users: [alice], verbs: [get], subresources: [pods]}}\n- {{groups: [ops], verbs: ['*'], subresources: ['*']}}\n",
        fingerprint("token"),
        fingerprint("admin-token")
    );
    std::fs::write(path("access.yaml"), access).unwrap();
    let authorities =
        Reloaded::open(path("ca.crt"), |pem: &[u8]| Authorities::from_pem(pem).map_err(|e| e.to_string()))
            .unwrap();
    let local = Reloaded::open(path("access.yaml"), |bytes: &[u8]| {
        LocalAccess::parse(&String::from_utf8_lossy(bytes)).map_err(|e| e.to_string())
    })
    .unwrap();
    let authentication = Authentication { authorities: Some(authorities), ..Authentication::default() };
    let guard = Arc::new(Guard::new(authentication, Authorization::Local, Some(local), None));
    let (certificate, key_path) =
        ensure_self_signed(directory.path(), &["localhost".into(), "127.0.0.1".into()]).unwrap();
    let server = CertificateDer::from_pem_file(&certificate).unwrap();
    let mut tls = TlsSettings { certificate, key: key_path, ..TlsSettings::default() };
    settings(&mut tls);
    let tls = tls_config(&tls, &guard).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let secure = SecureConfig { address, tls, guard, acting_verb };
    let (fixture, address) = Fixture::configured(|config| {
        config.switches.allocated_pods = true;
        config.secure = Some(secure);
        change(config);
    });
    Secure { fixture, address: address.unwrap(), server, ca: Issuer::new(params, key) }
}

impl Secure {
    pub(super) fn client(&self, user: Option<(&str, &str)>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.server.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let Some((name, group)) = user else { return builder.with_no_client_auth() };
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        let private = PrivateKeyDer::try_from(key.serialized_der().to_vec()).unwrap();
        builder.with_client_auth_cert(vec![certificate.der().clone()], private).unwrap()
    }

    /// Status and body.
    pub(super) async fn ask(
        &self,
        client: ClientConfig,
        method: &str,
        path: &str,
        token: &str,
    ) -> (u16, String) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        let headers = if token.is_empty() { &[] } else { headers.as_slice() };
        let reply = exchange(stream, method, path, headers).await;
        (reply.status, reply.body)
    }
}

#[tokio::test]
async fn nobody_passes_without_a_right_and_unknown_paths_tell_nothing() {
    let secure = secure(|_| {});
    secure.fixture.publish(snapshot(1, Vec::new(), Vec::new()));
    let none = || secure.client(None);
    let token = "token";
    let ops = || secure.client(Some(("oscar", "ops")));
    for (client, method, path, token, status, body) in [
        (none(), "GET", "/pods", "", 401, "Unauthorized"),
        (none(), "GET", "/healthz", "", 401, "Unauthorized"),
        (none(), "GET", "/mainstay/v1/node", "", 401, "Unauthorized"),
        (none(), "GET", "/pods", "forged", 401, "Unauthorized"),
        (none(), "GET", "/nowhere", "", 404, "404 page not found\n"),
        (none(), "GET", "/runningpods", "", 307, ""),
        (
            none(),
            "GET",
            "/healthz",
            token,
            403,
            "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[healthz proxy])\n",
        ),
        (
            none(),
            "POST",
            "/pods",
            token,
            403,
            "Forbidden (user=alice, verb=create, resource=nodes, subresource(s)=[pods proxy])\n",
        ),
        (none(), "GET", "/pods/../healthz", token, 307, ""),
        (none(), "GET", "/%70ods/%2e%2e/healthz", token, 404, "404: Page Not Found"),
        (ops(), "GET", "/healthz", "", 200, "ok"),
        (ops(), "POST", "/pods", "", 405, "405: Method Not Allowed"),
        (ops(), "GET", "/healthz", "forged", 200, "ok"),
        (
            secure.client(Some(("eve", "none"))),
            "GET",
            "/pods",
            "",
            403,
            "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n",
        ),
    ] {
        let (found, text) = secure.ask(client, method, path, token).await;
        assert_eq!(found, status, "{method} {path} {token:?}: {text}");
        if status != 307 {
            assert_eq!(text, body, "{method} {path} {token:?}");
        }
    }
    let (status, text) = secure.ask(none(), "GET", "/pods", token).await;
    assert_eq!(status, 200);
    assert!(text.starts_with(r#"{"kind":"PodList""#), "{text}");
}

#[tokio::test]
async fn plain_http_is_told_so() {
    let secure = secure(|_| {});
    let mut stream = TcpStream::connect(secure.address).await.unwrap();
    stream.write_all(b"GET /pods HTTP/1.1\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n");
}

#[tokio::test]
async fn versions_and_ciphers_are_as_configured() {
    let secure = secure(|tls| tls.min_version = "VersionTLS13".into());
    let mut roots = RootCertStore::empty();
    roots.add(secure.server.clone()).unwrap();
    let old = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(secure.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(old)).connect(name, stream).await.unwrap_err();
    assert_eq!(secure.ask(secure.client(None), "GET", "/pods", "").await.0, 401);
}

#[tokio::test]
async fn it_is_known_until_when_the_certificate_is_good() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["localhost".to_owned()];
    let (certificate, key) = ensure_self_signed(directory.path(), &names).unwrap();
    let settings = TlsSettings { certificate: certificate.clone(), key, ..TlsSettings::default() };
    let guard = Guard::new(Authentication::default(), Authorization::AlwaysAllow, None, None);
    let tls = tls_config(&settings, &guard).unwrap();
    let counts = &settings.counts;
    let days = |counts: &mainstay_types::CertificateCounts| {
        counts.seconds_left(jiff::Timestamp::now()).map(|seconds| seconds / 86_400)
    };
    assert!(matches!(days(counts), Some(364 | 365)), "{:?}", days(counts));
    // Files are looked at once in a second.
    let look = async || {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        tls.fresh().await;
    };
    std::fs::write(&certificate, "no certificate").unwrap();
    look().await;
    assert_eq!((counts.errors.get(), counts.lives.read().count), (1, 0));
    assert!(days(counts).is_some(), "the one before is shown");
    std::fs::remove_file(&certificate).unwrap();
    ensure_self_signed(directory.path(), &names).unwrap();
    look().await;
    assert_eq!((counts.errors.get(), counts.lives.read().count), (1, 1));
}

/// An HTTP/2 connection.
async fn http2(
    secure: &Secure,
) -> (hyper::client::conn::http2::SendRequest<http_body_util::Empty<bytes::Bytes>>, TaskGroup) {
    let mut client = secure.client(None);
    client.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(secure.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let tasks = TaskGroup::new();
    let (sender, connection) =
        hyper::client::conn::http2::Builder::new(super::acting::Streams(tasks.clone()))
            .initial_stream_window_size(1024)
            .handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .unwrap();
    tasks.spawn("client", async move { drop(connection.await) });
    (sender, tasks)
}

fn get(path: &str, token: &str) -> http::Request<http_body_util::Empty<bytes::Bytes>> {
    let request = http::Request::get(format!("https://127.0.0.1{path}"));
    request.header("authorization", format!("Bearer {token}")).body(http_body_util::Empty::new()).unwrap()
}

#[tokio::test]
async fn http_2_is_served_and_judged_request_by_request() {
    use http_body_util::BodyExt as _;
    let secure = secure(|_| {});
    secure.fixture.publish(snapshot(1, vec![simple_pod("web", &"x".repeat(100_000))], vec![]));
    let (sender, _tasks) = http2(&secure).await;
    let ask = |path: &'static str, token: &'static str| {
        let mut sender = sender.clone();
        async move {
            let answer = sender.send_request(get(path, token)).await.unwrap();
            let status = answer.status().as_u16();
            assert_eq!(answer.version(), http::Version::HTTP_2);
            (status, answer.into_body().collect().await.unwrap().to_bytes())
        }
    };
    // Who asked before on the same connection counts for nothing.
    let (known, stranger, forbidden, unknown) = tokio::join!(
        ask("/pods", "token"),
        ask("/pods", "forged"),
        ask("/metrics", "token"),
        ask("/x", "token")
    );
    assert_eq!((known.0, stranger.0, forbidden.0, unknown.0), (200, 401, 403, 404));
    assert!(known.1.len() > 100_000 && known.1.ends_with(b"\n"), "through windows of a kilobyte");
    assert_eq!(stranger.1, "Unauthorized");

    // A hundred streams whose client takes nothing do not hold up another.
    let mut held = Vec::new();
    for _ in 0..100 {
        let mut sender = sender.clone();
        held.push(sender.send_request(get("/pods", "token")).await.unwrap());
    }
    let (other, _more) = http2(&secure).await;
    let mut other = other;
    assert_eq!(other.send_request(get("/pods", "token")).await.unwrap().status(), 200);

    // A watch is a stream of its own.
    let answer = sender.clone().send_request(get("/pods?watch=1", "token")).await.unwrap();
    let mut body = answer.into_body();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("BOOKMARK") {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("in time").unwrap().unwrap();
        seen.extend_from_slice(&frame.into_data().unwrap());
    }
    // Nothing on HTTP/2 becomes another protocol.
    let exec = sender.clone().send_request(get("/exec/default/web/c?command=id&output=1", "admin-token"));
    assert_eq!(exec.await.unwrap().status(), 503, "this server has no runtime, which is found out first");
}
