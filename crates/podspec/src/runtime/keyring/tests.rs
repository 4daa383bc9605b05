use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;

use super::*;

fn secret(name: &str, kind: &str, key: &str, text: &str) -> Secret {
    let mut secret: Secret = serde_json::from_value(
        serde_json::json!({"metadata": {"name": name, "namespace": "ns"}, "type": kind}),
    )
    .unwrap();
    secret.data = Some([(key.to_owned(), ByteString(text.as_bytes().to_vec()))].into());
    secret
}

/// A pull secret with one user per place, named like the place.
fn config_json(places: &[&str]) -> Secret {
    let auths: serde_json::Map<String, serde_json::Value> = places
        .iter()
        .map(|place| {
            ((*place).to_owned(), serde_json::json!({"auth": STANDARD.encode(format!("{place}:pass:word"))}))
        })
        .collect();
    let text = serde_json::json!({ "auths": auths }).to_string();
    secret("pull", "kubernetes.io/dockerconfigjson", ".dockerconfigjson", &text)
}

#[track_caller]
fn users(keyring: &Keyring, image: &str) -> Vec<String> {
    keyring
        .lookup(&ImageName::parse(image).unwrap())
        .iter()
        .map(|found| found.auth_config().username)
        .collect()
}

#[test]
fn places_match_as_upstream() {
    for (place, image, matches) in [
        ("q.io", "q.io/x", true),
        ("q.io", "q.io/a/b:tag", true),
        ("q.io", "r.io/x", false),
        ("q.io", "a.q.io/x", false),
        ("https://q.io", "q.io/x", true),
        ("http://q.io/", "q.io/x", true),
        ("https://q.io/v1/", "q.io/x", true),
        ("https://q.io/v2/", "q.io/x", true),
        ("https://q.io/v2/team", "q.io/team/x", true),
        ("https://q.io/v2", "q.io/x", false),
        ("q.io:5000", "q.io:5000/x", true),
        ("q.io:5000", "q.io/x", false),
        ("q.io", "q.io:5000/x", false),
        ("[::1]:5000", "[::1]:5000/x", true),
        ("q.io/team", "q.io/team/x", true),
        ("q.io/team", "q.io/teams/x", true),
        ("q.io/team/", "q.io/teams/x", false),
        ("q.io/team", "q.io/other/x", false),
        ("*.q.io", "a.q.io/x", true),
        ("*.q.io", "q.io/x", false),
        ("*.q.io", "a.b.q.io/x", false),
        ("*.*.q.io", "a.b.q.io/x", true),
        ("pre*.q.io", "prefix.q.io/x", true),
        ("pre*.q.io", "other.q.io/x", false),
        ("*-mid-*.q.io:80/p", "a-mid-b.q.io:80/p/x", true),
        ("*.*.*", "a.b.c/x", true),
        ("**.q.io", "a.q.io/x", true),
        ("a*b*a.q.io", "aba.q.io/x", true),
        ("a*b*a.q.io", "ab.q.io/x", false),
        ("?.q.io", "a.q.io/x", false),
        ("[a-c].q.io", "b.q.io/x", false),
        ("https://index.docker.io/v1/", "busybox", true),
        ("https://index.docker.io/v1/", "local/busybox:1", true),
        ("https://index.docker.io/v1/", "docker.io/library/busybox", true),
        ("https://index.docker.io/v1/", "q.io/x", false),
        ("index.docker.io", "busybox", true),
        ("docker.io", "busybox", true),
        ("registry-1.docker.io", "busybox", false),
    ] {
        let keyring = Keyring::from_secrets([&config_json(&[place])]).unwrap();
        assert_eq!(!users(&keyring, image).is_empty(), matches, "{place} for {image}");
    }
}

#[test]
fn the_most_specific_comes_first() {
    let keyring = Keyring::from_secrets([&config_json(&["q.io", "q.io/a/b", "q.io/a", "*.io"])]).unwrap();
    assert_eq!(users(&keyring, "q.io/a/b/c"), ["q.io/a/b", "q.io/a", "q.io", "*.io"]);
    assert_eq!(users(&keyring, "q.io/z"), ["q.io", "*.io"]);
    // Docker Hub's entry is used only where nothing else matches.
    let keyring =
        Keyring::from_secrets([&config_json(&["docker.io/team", "https://index.docker.io/v1/"])]).unwrap();
    assert_eq!(users(&keyring, "team/x"), ["docker.io/team"]);
    assert_eq!(users(&keyring, "x"), ["https"], "the user name ends at the first colon");
}

#[test]
fn forms_of_secrets() {
    let dockercfg = secret(
        "old",
        "kubernetes.io/dockercfg",
        ".dockercfg",
        r#"{"q.io":{"username":"u","password":"p","email":"e@x"},"r.io":{"username":"lost","auth":"dTpw"}}"#,
    );
    let opaque = secret("opaque", "Opaque", ".dockercfg", r#"{"q.io":{"username":"never"}}"#);
    let empty = secret("empty", "kubernetes.io/dockerconfigjson", ".dockerconfigjson", "");
    let bare = secret("bare", "kubernetes.io/dockerconfigjson", ".dockerconfigjson", r#"{"HttpHeaders":{}}"#);
    let second = config_json(&["q.io"]);
    let keyring = Keyring::from_secrets([&dockercfg, &opaque, &empty, &bare, &second]).unwrap();
    assert_eq!(users(&keyring, "q.io/x"), ["u", "q.io"]);
    let found = keyring.lookup(&ImageName::parse("q.io/x").unwrap());
    assert_eq!(found[0].auth_config().password, "p");
    assert_eq!(found[1].auth_config().password, "pass:word");
    assert_eq!(found[0].source(), Some(&FullName::new("ns", "old")));
    assert_eq!(users(&keyring, "r.io/x"), ["u"], "auth wins over username");

    let mut text = Secret { type_: Some("kubernetes.io/dockercfg".to_owned()), ..Secret::default() };
    text.string_data = Some([(".dockercfg".to_owned(), r#"{"q.io":{"username":"s"}}"#.to_owned())].into());
    assert_eq!(users(&Keyring::from_secrets([&text]).unwrap(), "q.io/x"), ["s"]);

    let node = Keyring::from_config_json(br#"{"auths":{"q.io":{"username":"n"}}}"#, "config.json").unwrap();
    assert_eq!(node.lookup(&ImageName::parse("q.io/x").unwrap())[0].source(), None);
}

#[test]
fn auth_fields() {
    for (auth, expected) in [
        ("dTpw", Some(("u", "p"))),
        ("dTpwdw==", Some(("u", "pw"))),
        ("dTpwdw", Some(("u", "pw"))),
        ("dTpw\n", Some(("u", "p"))),
        ("dTo=", Some(("u", ""))),
        ("dQ==", None),
        ("%%%", None),
        ("//79", None),
    ] {
        let expected = expected.map(|(user, password)| (user.to_owned(), password.to_owned()));
        assert_eq!(decode_auth(auth), expected, "{auth}");
    }
}

#[test]
fn errors_and_debug_show_no_secret() {
    let hidden = "hunter2";
    for text in [
        format!(r#"{{"auths": "{hidden}"}}"#),
        format!(r#"{{"auths": {{"q.io": {{"auth": "{hidden}"}}}}}}"#),
        format!(r#"{{"auths": {{"q.io": "{hidden}"}}}}"#),
        format!("{hidden} is not JSON"),
    ] {
        let error = Keyring::from_secrets([&secret(
            "s",
            "kubernetes.io/dockerconfigjson",
            ".dockerconfigjson",
            &text,
        )])
        .unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(hidden), "{shown}");
        assert!(shown.contains("secret ns/s key .dockerconfigjson"), "{shown}");
    }
    let text = format!(
        r#"{{"auths":{{"q.io":{{"username":"{hidden}","password":"{hidden}","email":"{hidden}"}}}}}}"#
    );
    let keyring = Keyring::from_config_json(text.as_bytes(), "config.json").unwrap();
    let shown = format!("{keyring:?} {:#?}", keyring.lookup(&ImageName::parse("q.io/x").unwrap()));
    assert!(!shown.contains(hidden) && shown.contains("q.io"), "{shown}");
}

#[test]
fn globs_take_linear_time() {
    let glob = "*a".repeat(200) + "b";
    assert!(!glob_matches(&glob, &"a".repeat(2000)));
    assert!(glob_matches(&glob, &("a".repeat(2000) + "b")));
}

#[test]
fn record_hashes() {
    let text = r#"{"auths":{"q.io":{"username":"u","password":"p<w"}}}"#;
    let keyring = Keyring::from_config_json(text.as_bytes(), "config.json").unwrap();
    let found = keyring.lookup(&ImageName::parse("q.io/x").unwrap());
    // sha256sum of {"username":"u","password":"p\u003cw"}
    assert_eq!(found[0].hash(), "9bbf0406ef5bc1bbff8d32d4b4f1208f754ab24e6dbe52f001f23626f1db1a6d");
}

#[test]
fn a_provider_is_asked_about_the_images_of_its_patterns() {
    for (pattern, image, expected) in [
        ("*.example.com", "a.example.com/team/app", true),
        ("*.example.com", "example.com/team/app", false),
        ("*.*.example.com", "a.b.example.com/app", true),
        ("a.example.com/team", "a.example.com/team/app", true),
        ("a.example.com/team", "a.example.com/other/app", false),
        ("a.example.com:5000", "a.example.com/app", false),
        ("https://a.example.com:5000", "a.example.com:5000/app:1", true),
        ("docker.io", "nginx", true),
    ] {
        let name = ImageName::parse(image).unwrap();
        assert_eq!(matches_image(pattern, &name), expected, "{pattern} {image}");
    }
    let answer = [("*.example.com".to_owned(), ("u".to_owned(), "p".to_owned()))].into();
    let found = Keyring::from_provider(answer).lookup(&ImageName::parse("a.example.com/app").unwrap());
    assert_eq!(found.iter().map(|it| it.auth_config().username).collect::<Vec<_>>(), ["u"]);
}
