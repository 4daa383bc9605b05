//! Every route by every method through every listener: who is let through, and that nothing is reached undecided.

use mainstay_auth::ActingVerb;

use super::{secure::secure_with, *};
use crate::table::{Face, Mux, ROUTES, Route};

const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "INVENTED"];

/// A path that belongs to the route.
fn example(route: &Route) -> String {
    route.path.replace("...", "").replace(['{', '}'], "")
}

fn verb(route: &Route, method: &str, acting: ActingVerb) -> &'static str {
    match method {
        _ if route.acts && acting == ActingVerb::Create => "create",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Alice is known and may only see pods: what she is refused is worded with the very rights that the table names, which
/// only the guard's decision on this request can have put there. Nobody is not even told that.
#[tokio::test]
async fn no_handler_of_the_secure_port_is_reached_without_a_decision() {
    for acting in [ActingVerb::Create, ActingVerb::ByMethod] {
        every_route_is_decided_on(acting).await;
    }
}

async fn every_route_is_decided_on(acting: ActingVerb) {
    let secure = secure_with(|_| {}, acting, |_| {});
    secure.fixture.publish(snapshot(1, vec![], vec![]));
    for route in ROUTES.iter().filter(|route| route.faces.contains(&Face::Secure)) {
        let path = example(route);
        for method in METHODS {
            let what = format!("{method} {path}");
            let (status, text) = secure.ask(secure.client(None), method, &path, "").await;
            assert_eq!(status, 401, "{what}: {text}");
            let (status, text) = secure.ask(secure.client(None), method, &path, "token").await;
            let may = verb(route, method, acting) == "get" && route.subresources.contains(&"pods");
            if may {
                assert!(!matches!(status, 401 | 403), "{what}: {text}");
                continue;
            }
            assert_eq!(status, 403, "{what}: {text}");
            if method != "HEAD" {
                let expected = format!(
                    "Forbidden (user=alice, verb={}, resource=nodes, subresource(s)=[{}])\n",
                    verb(route, method, acting),
                    route.subresources.join(" ")
                );
                assert_eq!(text, expected, "{what}");
            }
        }
    }
}

/// What a router says before any handler: on each listener, for each route and method.
#[tokio::test]
async fn routers_answer_by_the_table() {
    // Whatever is off by default is on here.
    let fixture =
        Fixture::with_switches(crate::Switches { allocated_pods: true, ..crate::Switches::default() });
    fixture.publish(snapshot(1, vec![], vec![]));
    for route in ROUTES {
        let path = example(route);
        for (face, address) in [
            (Face::Local, None),
            (Face::ReadOnly, Some(fixture.read_only)),
            (Face::Healthz, Some(fixture.healthz)),
        ] {
            for method in METHODS {
                let reply = match address {
                    None => fixture.request(method, &path, &[]).await,
                    Some(address) => tcp(address, method, &path).await,
                };
                let what = format!("{method} {path} on {face:?}: {reply:?}");
                let served = route.faces.contains(&face);
                let is_body = method != "HEAD";
                if !served {
                    let disabled = face == Face::ReadOnly
                        && crate::table::DISABLED.iter().any(|it| path.starts_with(&format!("{it}/")));
                    let (status, text) = match disabled {
                        true => (405, "Debug endpoints are disabled.\n"),
                        false => (404, "404 page not found\n"),
                    };
                    assert_eq!(reply.status, status, "{what}");
                    assert!(!is_body || reply.body == text, "{what}");
                } else if route.mux != Mux::Exact && !route.methods.contains(&method) {
                    assert_eq!(reply.status, 405, "{what}");
                    assert_eq!(reply.header("allow"), Some(route.methods.join(", ").as_str()), "{what}");
                    assert!(!is_body || reply.body == "405: Method Not Allowed", "{what}");
                } else {
                    // A token that nobody was given is as unknown as a path.
                    let unknown = route.path.starts_with("/cri/");
                    assert!(unknown || reply.body != "404 page not found\n", "{what}");
                    assert_ne!(reply.body, "404: Page Not Found", "{what}");
                    assert_ne!(reply.body, "405: Method Not Allowed", "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn switches_turn_routes_off() {
    let off = crate::Switches {
        debugging_handlers: false,
        container_checkpoint: false,
        flagz: false,
        statusz: false,
        ..crate::Switches::default()
    };
    let fixture = Fixture::with_switches(off);
    fixture.publish(snapshot(1, vec![], vec![]));
    // The socket is root's: only gates count there.
    for (path, status) in [
        ("/runningpods/", 200),
        ("/configz", 200),
        ("/flagz", 404),
        ("/statusz", 404),
        ("/checkpoint/a/b/c", 404),
    ] {
        assert_eq!(fixture.get(path).await.status, status, "{path}");
    }
}

/// Every variable of every path, filled with what tries to lead elsewhere: nothing is found that way, and nothing breaks.
#[tokio::test]
async fn no_value_in_a_path_leads_elsewhere() {
    let fixture = Fixture::start();
    std::fs::write(fixture.directory.path().join("secret"), "not for you").unwrap();
    let running = container("id1", "c", ContainerPhase::Running, "/etc/hostname");
    fixture.publish(snapshot(1, vec![simple_pod("web", "")], vec![observed_pod("web", true, vec![running])]));
    let evil = [
        "..",
        ".",
        "%2e%2e",
        "..%2f..%2fsecret",
        "%2e%2e%2fsecret",
        "a%2Fb",
        "%2Fetc%2Fpasswd",
        "%00",
        "%ff",
        "..%5c",
    ];
    let mut asked = 0;
    for route in ROUTES.iter().filter(|route| route.path.contains('{')) {
        let variables: Vec<&str> = route.path.split('/').filter(|part| part.starts_with('{')).collect();
        for variable in &variables {
            for value in evil {
                // The others as they would be, so that each is the last that is wrong.
                let mut path = route.path.replace(variable, value);
                for (name, good) in
                    [("{namespace}", "default"), ("{pod}", "web"), ("{uid}", "uid-web"), ("{container}", "c")]
                {
                    path = path.replace(name, good);
                }
                let path = path.replace("...", "").replace(['{', '}'], "");
                for method in route.methods {
                    let reply = fixture.request(method, &path, &[]).await;
                    let what = format!("{method} {path} of {}: {reply:?}", route.path);
                    assert!(!reply.body.contains("not for you") && !reply.body.contains("root:"), "{what}");
                    let own_listing = route.path.starts_with("/logs/") && reply.body.contains("<pre>");
                    let moved = matches!(reply.status, 301 | 307) && reply.header("location").is_some();
                    let refused = (400..=599).contains(&reply.status);
                    assert!(own_listing || moved || refused, "{what}");
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 200, "{asked}");
}
