use std::fs;

use rcgen::{CertificateParams, KeyPair};

use super::*;

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["a".into()]).unwrap().self_signed(&key).unwrap();
    (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", key.serialized_der()))
}

#[test]
fn all_forms_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = pair();
    fs::write(dir.path().join("crt"), &certificate).unwrap();
    fs::write(dir.path().join("key"), &key).unwrap();
    fs::write(dir.path().join("token"), "abc\n").unwrap();
    let inline = |text: &str| STANDARD.encode(text);
    let path = dir.path().join("kubeconfig");
    let read = |cluster: &str, user: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: c\n\
             contexts: [{{name: other, context: {{}}}}, {{name: c, context: {{cluster: k, user: u, namespace: x}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://h:6443', {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        fs::write(&path, text).unwrap();
        load(&path).unwrap()
    };
    let by_files =
        read("certificate-authority: crt", "client-certificate: crt, client-key: key, tokenFile: token");
    assert_eq!(by_files.files.len(), 5, "the kubeconfig and what it names");
    assert!(matches!(by_files.login, Login::Token(token) if token == "abc"));
    let by_data = read(
        &format!("certificate-authority-data: {}", inline(&certificate)),
        &format!("client-certificate-data: {}, client-key-data: {}", inline(&certificate), inline(&key)),
    );
    assert_eq!(by_data.identity.unwrap().certificate, by_files.identity.unwrap().certificate);
    assert!(matches!(by_data.authority, Authority::Pem(pem, _) if pem == certificate.as_bytes()));
    assert!(
        matches!(read("", "username: me, password: secret").login, Login::Basic(text) if text == "bWU6c2VjcmV0")
    );
    let proxied = read("proxy-url: 'http://[fd00::2]:3128', tls-server-name: x", "token: t");
    assert_eq!(proxied.proxy, Some(("fd00::2".into(), 3128)));
    assert_eq!(proxied.server_name.as_deref(), Some("x"));
    assert_eq!(read("insecure-skip-tls-verify: true", "").authority, Authority::Unchecked);
    assert!(!format!("{:?}", read("", "token: geheim")).contains("geheim"), "secrets are not shown");
}

#[test]
fn what_is_wrong_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, _) = pair();
    let (_, other_key) = pair();
    fs::write(dir.path().join("crt"), &certificate).unwrap();
    fs::write(dir.path().join("other"), &other_key).unwrap();
    fs::write(dir.path().join("junk"), "junk").unwrap();
    let path = dir.path().join("kubeconfig");
    for (server, cluster, user, expected) in [
        (
            "https://h",
            "certificate-authority: none",
            "",
            "clusters[\"k\"].cluster.certificate-authority: cannot read",
        ),
        ("https://h", "certificate-authority: junk", "", "there is no certificate in it"),
        ("https://h", "certificate-authority-data: '%'", "", "certificate-authority-data: it is not base64"),
        ("https://h", "certificate-authority: crt, insecure-skip-tls-verify: true", "", "contradicts"),
        ("ftp://h", "", "", "neither https nor http"),
        ("https://", "", "", "cluster.server"),
        ("", "", "", "cluster.server"),
        ("https://me@h", "", "", "has a user in it"),
        ("https://h", "proxy-url: 'socks5://h:1'", "", "proxy-url: \"socks5://h:1\" is not an http:// proxy"),
        (
            "https://h",
            "",
            "client-certificate: crt",
            "users[\"u\"].user.client-key: the client certificate needs its key",
        ),
        ("https://h", "", "client-key: other", "users[\"u\"].user.client-certificate: there is a client key"),
        (
            "https://h",
            "",
            "client-certificate: crt, client-key: other",
            "does not belong to the client certificate",
        ),
        (
            "https://h",
            "",
            "client-certificate: crt, client-key: junk",
            "its client key cannot be read as PEM",
        ),
        ("https://h", "", "tokenFile: none", "users[\"u\"].user.tokenFile: cannot read"),
        ("https://h", "", "token: 'a b'", "no header can carry"),
        ("https://h", "", "auth-provider: {name: gcp}", "auth-provider: it is not supported; use exec"),
        ("https://h", "", "as: root", "speaks for itself"),
        ("https://h", "", "exec: {command: x, apiVersion: v9}", "exec: apiVersion \"v9\" is not one of"),
        ("https://h", "", "exec: {apiVersion: client.authentication.k8s.io/v1}", "command is empty"),
        (
            "https://h",
            "",
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Always}",
            "there is nobody to ask",
        ),
    ] {
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: '{server}', {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        fs::write(&path, text).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.contains(expected) && error.contains(&path.display().to_string()),
            "{user} {cluster}: {error}"
        );
    }
    for (text, expected) in [
        ("", "current-context: it is empty"),
        ("[1]", "is not valid"),
        ("{}", "current-context: it is empty"),
        ("current-context: x", "there is no context \"x\""),
        ("current-context: c\ncontexts: [{name: c, context: {cluster: k}}]", "there is no cluster \"k\""),
        (
            "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: v}}]\nclusters: [{name: k}]",
            "there is no user \"v\"",
        ),
    ] {
        fs::write(&path, text).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = load(&dir.path().join("none")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the kubeconfig"), "{error}");
}
