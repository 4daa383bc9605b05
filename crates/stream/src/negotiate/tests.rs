use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn spdy_request(protocols: &[&str]) -> HeaderMap {
    let mut pairs = vec![("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    pairs.extend(protocols.iter().map(|protocol| ("x-stream-protocol-version", *protocol)));
    headers(&pairs)
}

fn websocket_request(protocols: Option<&str>) -> HeaderMap {
    let mut pairs = vec![
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    pairs.extend(protocols.map(|protocols| ("sec-websocket-protocol", protocols)));
    headers(&pairs)
}

#[test]
fn spdy_takes_the_clients_first_choice() {
    let table: [(&[&str], Version); 4] = [
        (&["v4.channel.k8s.io", "v3.channel.k8s.io"], Version::V4),
        (&["v5.channel.k8s.io, v2.channel.k8s.io,v4.channel.k8s.io"], Version::V2),
        (&["channel.k8s.io"], Version::V1),
        (&["nonsense", "v3.channel.k8s.io"], Version::V3),
    ];
    for (offered, version) in table {
        let agreed = remote_command(&Method::POST, &spdy_request(offered)).unwrap();
        assert_eq!(agreed.protocol, Protocol::Spdy(version), "{offered:?}");
        assert_eq!(agreed.response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(agreed.response.headers()["upgrade"], "SPDY/3.1");
        assert_eq!(agreed.response.headers()["connection"], "Upgrade");
    }
    let agreed = port_forward(&Method::POST, &spdy_request(&["portforward.k8s.io"])).unwrap();
    assert_eq!(agreed.protocol, PortForwardProtocol::Spdy);
    assert_eq!(agreed.response.headers()["x-stream-protocol-version"], "portforward.k8s.io");
}

#[test]
fn spdy_refusals_have_upstreams_words() {
    let refused = |headers: &HeaderMap| *remote_command(&Method::POST, headers).unwrap_err();
    let missing = refused(&spdy_request(&[]));
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        missing.body,
        "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with 2 headers\n"
    );
    assert_eq!(missing.headers["content-type"], "text/plain; charset=utf-8");
    let empty = refused(&spdy_request(&[" ,"]));
    assert_eq!(empty.status, StatusCode::BAD_REQUEST);
    assert!(empty.body.ends_with("but no valid protocols\n"), "{}", empty.body);
    let unknown = refused(&spdy_request(&["v5.channel.k8s.io"]));
    assert_eq!(unknown.status, StatusCode::FORBIDDEN);
    assert_eq!(
        unknown.body,
        "unable to upgrade: unable to negotiate protocol: client supports [v5.channel.k8s.io], server accepts \
         [v4.channel.k8s.io v3.channel.k8s.io v2.channel.k8s.io channel.k8s.io]\n"
    );
    let accepted: Vec<_> = unknown.headers.get_all("x-accepted-stream-protocol-versions").iter().collect();
    assert_eq!(accepted, ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]);
    let plain = refused(&headers(&[("x-stream-protocol-version", "v4.channel.k8s.io")]));
    assert_eq!(plain.status, StatusCode::BAD_REQUEST);
    assert!(
        plain.body.starts_with("unable to upgrade: missing upgrade headers in request"),
        "{}",
        plain.body
    );
    let response = Response::<String>::from(plain);
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[test]
fn websocket_subprotocols() {
    let table = [
        (None, Some((Version::V1, Codec::Binary)), ""),
        (Some("channel.k8s.io"), Some((Version::V1, Codec::Binary)), "channel.k8s.io"),
        (Some("base64.channel.k8s.io"), Some((Version::V1, Codec::Base64)), "base64.channel.k8s.io"),
        (Some("v4.channel.k8s.io"), Some((Version::V4, Codec::Binary)), "v4.channel.k8s.io"),
        (Some("x, v4.base64.channel.k8s.io"), Some((Version::V4, Codec::Base64)), "v4.base64.channel.k8s.io"),
        (
            Some("v4.channel.k8s.io, v5.channel.k8s.io"),
            Some((Version::V5, Codec::Binary)),
            "v5.channel.k8s.io",
        ),
        (Some("v3.channel.k8s.io"), None, ""),
        (Some("SPDY/3.1+portforward.k8s.io"), None, ""),
    ];
    for (offered, expected, name) in table {
        let request = websocket_request(offered);
        assert!(is_websocket(&request));
        match (remote_command(&Method::GET, &request), expected) {
            (Ok(agreed), Some((version, codec))) => {
                assert_eq!(agreed.protocol, Protocol::WebSocket(version, codec), "{offered:?}");
                assert_eq!(agreed.response.headers()["sec-websocket-protocol"], name, "{offered:?}");
                assert_eq!(agreed.response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
            }
            (Err(refusal), None) => {
                assert_eq!(
                    (refusal.status, refusal.body.as_str()),
                    (StatusCode::FORBIDDEN, ""),
                    "{offered:?}"
                );
                assert_eq!(refusal.headers["connection"], "close");
            }
            (other, _) => panic!("{offered:?}: {other:?}"),
        }
    }
}

#[test]
fn websocket_handshakes_that_are_wrong() {
    let refused = |method: &Method, change: &dyn Fn(&mut HeaderMap)| {
        let mut request = websocket_request(Some("v5.channel.k8s.io"));
        change(&mut request);
        let refusal = remote_command(method, &request).unwrap_err();
        (refusal.status.as_u16(), refusal.body.clone(), refusal.headers.get("sec-websocket-version").cloned())
    };
    assert_eq!(refused(&Method::POST, &|_| {}), (405, "bad method".to_owned(), None));
    let no_key = refused(&Method::GET, &|headers| drop(headers.remove("sec-websocket-key")));
    assert_eq!(no_key, (400, "mismatch challenge/response".to_owned(), None));
    let version = HeaderValue::from_static("13");
    let no_version = refused(&Method::GET, &|headers| drop(headers.remove("sec-websocket-version")));
    assert_eq!(no_version, (400, "missing or bad WebSocket Version".to_owned(), Some(version)));
}

#[test]
fn tunnels_are_recognised() {
    let table = [
        (Some("SPDY/3.1+portforward.k8s.io"), true, Ok(PortForwardProtocol::Tunnel)),
        (Some("v4.channel.k8s.io, SPDY/3.1+portforward.k8s.io"), true, Ok(PortForwardProtocol::Tunnel)),
        (Some("SPDY/3.1+foo.k8s.io"), true, Err(403)),
        (Some("SPDY/3.1+portforward"), false, Err(403)),
        (Some("v4.channel.k8s.io"), false, Ok(PortForwardProtocol::WebSocket(Codec::Binary))),
        (Some("v4.base64.channel.k8s.io"), false, Ok(PortForwardProtocol::WebSocket(Codec::Base64))),
        (Some("channel.k8s.io"), false, Err(403)),
        (None, false, Ok(PortForwardProtocol::WebSocket(Codec::Binary))),
    ];
    for (offered, tunnel, expected) in table {
        let request = websocket_request(offered);
        assert_eq!(wants_tunnel(&request), tunnel, "{offered:?}");
        let agreed = port_forward(&Method::GET, &request);
        let got = agreed.map(|agreed| agreed.protocol).map_err(|refusal| refusal.status.as_u16());
        assert_eq!(got, expected, "{offered:?}");
    }
    let request = websocket_request(Some("SPDY/3.1+a.k8s.io, b.k8s.io, SPDY/3.1+c.k8s.io"));
    assert_eq!(tunnelled_protocols(&request), ["a.k8s.io", "c.k8s.io"]);
    let agreed = port_forward(&Method::GET, &websocket_request(Some("SPDY/3.1+portforward.k8s.io"))).unwrap();
    assert_eq!(agreed.response.headers()["sec-websocket-protocol"], "SPDY/3.1+portforward.k8s.io");
}

#[test]
fn only_upgrades_are_upgrades() {
    assert!(!is_upgrade(&headers(&[("upgrade", "websocket")])));
    assert!(!is_websocket(&spdy_request(&[])));
    assert!(!wants_v5(&spdy_request(&["v5.channel.k8s.io"])));
    assert!(wants_v5(&websocket_request(Some(" v4.channel.k8s.io ,v5.channel.k8s.io"))));
}

#[test]
fn ports_of_websocket_requests() {
    let invalid = |value: &str, part: &str, why: &str| {
        Err(format!("unable to parse {value:?} as a port: strconv.ParseUint: parsing {part:?}: {why}"))
    };
    let table = [
        (&["7000,8000", "9000"][..], Ok(vec![7000, 8000, 9000])),
        (&["1", "65535"], Ok(vec![1, 65535])),
        (&[], Err("query parameter \"port\" is required".to_owned())),
        (&["80", ""], Err("query parameter \"port\" cannot be empty".to_owned())),
        (&["abc"], invalid("abc", "abc", "invalid syntax")),
        (&["80,"], invalid("80,", "", "invalid syntax")),
        (&["+80"], invalid("+80", "+80", "invalid syntax")),
        (&["65536"], invalid("65536", "65536", "value out of range")),
        (&["0"], Err("port \"0\" must be > 0".to_owned())),
    ];
    for (values, expected) in table {
        assert_eq!(ports(values.iter().copied()), expected, "{values:?}");
    }
    assert!(ports(["80"; 128]).unwrap_err().contains("128 ports"));
    assert_eq!(ports(["80"; 127]).unwrap().len(), 127);
}
