use std::{
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use http::{HeaderValue, Method, header::AUTHORIZATION};

use super::*;
use crate::ActingVerb;

/// Knows one token and one right, and counts the questions.
#[derive(Debug, Default)]
struct Api {
    questions: AtomicUsize,
    broken: bool,
}

impl Reviewer for Api {
    fn token<'a>(&'a self, token: &'a Token) -> Answer<'a, Option<Identity>> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if self.broken {
                return Err(ReviewError("away".into()));
            }
            let alice = Identity { user: "alice".into(), groups: vec!["devs".into()], ..Identity::default() };
            Ok((token.expose() == "good").then_some(alice))
        })
    }

    fn access<'a>(&'a self, who: &'a Identity, verb: &'a str, subresource: &'a str) -> Answer<'a, bool> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if self.broken {
                return Err(ReviewError("away".into()));
            }
            Ok(who.user == "alice" && verb == "get" && subresource == "proxy")
        })
    }
}

const TTL: Duration = Duration::from_secs(60);

fn reviewed(api: &Arc<Api>, anonymous: bool) -> Guard {
    let authentication = Authentication { anonymous, authorities: None, token_review: Some(TTL) };
    let authorization = Authorization::Review { allowed_ttl: TTL, refused_ttl: TTL };
    let reviewer: Arc<dyn Reviewer> = api.clone();
    Guard::new(authentication, authorization, None, Some(reviewer))
}

async fn ask(
    guard: &Guard,
    token: Option<&str>,
    method: Method,
    path: &str,
) -> Result<String, (u16, String)> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
    }
    let attributes = Attributes::of(&method, path, ActingVerb::Create);
    let asking = Asking { headers: &headers, chain: &[], address: None, what: path };
    let judged = guard.judge(asking, &attributes).await;
    judged.map(|who| who.user).map_err(|refusal| (refusal.status.as_u16(), refusal.text))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

#[test]
fn the_api_server_is_asked_once() {
    run(async {
        let api = Arc::default();
        let guard = reviewed(&api, false);
        for _ in 0..3 {
            assert_eq!(ask(&guard, Some("good"), Method::GET, "/pods").await, Ok("alice".into()));
        }
        assert_eq!(api.questions.load(Ordering::Relaxed), 3, "the token, nodes/pods and nodes/proxy");
        let forbidden = "Forbidden (user=alice, verb=create, resource=nodes, subresource(s)=[proxy])\n";
        assert_eq!(ask(&guard, Some("good"), Method::GET, "/exec/a/b/c").await, Err((403, forbidden.into())));
        let metrics = "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[metrics])\n";
        assert_eq!(ask(&guard, Some("good"), Method::GET, "/metrics").await, Err((403, metrics.into())));
        let before = api.questions.load(Ordering::Relaxed);
        for _ in 0..3 {
            let refused = Err((401, "Unauthorized".into()));
            assert_eq!(ask(&guard, Some("bad"), Method::GET, "/pods").await, refused);
            assert_eq!(ask(&guard, None, Method::GET, "/pods").await, refused);
        }
        assert_eq!(api.questions.load(Ordering::Relaxed), before + 1, "a no is remembered, too");
    });
}

#[test]
fn anonymous_is_for_those_who_tried_nothing() {
    run(async {
        let api = Arc::default();
        let guard = reviewed(&api, true);
        let forbidden =
            "Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
        assert_eq!(ask(&guard, None, Method::GET, "/pods").await, Err((403, forbidden.into())));
        assert_eq!(ask(&guard, Some("bad"), Method::GET, "/pods").await, Err((401, "Unauthorized".into())));
    });
}

#[test]
fn an_api_server_that_is_away_lets_nobody_in() {
    run(async {
        let api = Arc::new(Api { broken: true, ..Api::default() });
        let guard = reviewed(&api, true);
        assert_eq!(ask(&guard, Some("good"), Method::GET, "/pods").await, Err((401, "Unauthorized".into())));
        let error = "Authorization error (user=system:anonymous, verb=get, resource=nodes, subresource=pods)";
        assert_eq!(ask(&guard, None, Method::GET, "/pods").await, Err((500, error.into())));
        assert_eq!(
            ask(&guard, None, Method::GET, "/pods").await,
            Err((500, error.into())),
            "an error is not kept"
        );
    });
}

#[test]
fn local_users_need_no_api_server() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.yaml");
        let token = crate::local::fingerprint("secret");
        let text = format!(
            "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{{name: bob, tokenSHA256: {token}}}]\n\
             rules: [{{users: [bob], verbs: [get], subresources: [pods]}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        let parse = |bytes: &[u8]| {
            LocalAccess::parse(&String::from_utf8_lossy(bytes)).map_err(|error| error.to_string())
        };
        let local = Reloaded::open(&path, parse).unwrap();
        let guard = Guard::new(Authentication::default(), Authorization::Local, Some(local), None);
        assert_eq!(ask(&guard, Some("secret"), Method::GET, "/pods").await, Ok("bob".into()));
        assert_eq!(ask(&guard, Some("secret"), Method::GET, "/configz").await.unwrap_err().0, 403);
        assert_eq!(ask(&guard, Some("other"), Method::GET, "/pods").await.unwrap_err().0, 401);
        assert_eq!(ask(&guard, None, Method::GET, "/pods").await.unwrap_err().0, 401);

        let closed = Guard::new(
            Authentication { anonymous: true, ..Authentication::default() },
            Authorization::Local,
            None,
            None,
        );
        assert_eq!(
            ask(&closed, None, Method::GET, "/healthz").await.unwrap_err().0,
            403,
            "closed by default"
        );
    });
}

#[test]
fn local_users_and_those_of_the_cluster_are_kept_apart() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.yaml");
        let token = crate::local::fingerprint("secret");
        // Of the same name as one of the cluster's, with other rights.
        let text = format!(
            "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{{name: alice, tokenSHA256: {token}}}]\n\
             rules: [{{users: [alice], verbs: [get], subresources: [metrics]}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        let parse = |bytes: &[u8]| {
            LocalAccess::parse(&String::from_utf8_lossy(bytes)).map_err(|error| error.to_string())
        };
        let local = Reloaded::open(&path, parse).unwrap();
        let api: Arc<Api> = Arc::default();
        let authentication = Authentication { anonymous: false, authorities: None, token_review: Some(TTL) };
        let authorization = Authorization::Review { allowed_ttl: TTL, refused_ttl: TTL };
        let guard = Guard::new(authentication, authorization, Some(local), Some(api.clone()));
        assert_eq!(ask(&guard, Some("secret"), Method::GET, "/metrics").await, Ok("alice".into()));
        assert_eq!(ask(&guard, Some("secret"), Method::GET, "/pods").await.unwrap_err().0, 403);
        assert_eq!(api.questions.load(Ordering::Relaxed), 0, "a local user is nobody's business elsewhere");
        assert_eq!(ask(&guard, Some("good"), Method::GET, "/pods").await, Ok("alice".into()));
        assert_eq!(ask(&guard, Some("good"), Method::GET, "/metrics").await.unwrap_err().0, 403);
    });
}

#[test]
fn no_two_users_share_a_right() {
    let user = |user: &str, groups: &[&str]| Identity {
        user: user.into(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..Identity::default()
    };
    let extra = |groups: &[&str], extra: &[(&str, &[&str])]| Identity {
        extra: extra
            .iter()
            .map(|(key, values)| ((*key).to_owned(), values.iter().map(|it| (*it).to_owned()).collect()))
            .collect(),
        ..user("a", groups)
    };
    let users = [
        user("a", &["b", "c"]),
        user("a", &["bc"]),
        user("ab", &["c"]),
        user("a", &["b"]),
        // What looks like the beginning of an extra may be a group.
        user("a", &["\n", "k", "v"]),
        extra(&[], &[("k", &["v"])]),
        extra(&["\n"], &[("k", &["v"])]),
        extra(&[], &[("k", &["v", "\n", "l"])]),
        extra(&[], &[("k", &["v"]), ("l", &[])]),
    ];
    let keys = users.map(|who| right_key(&who, "get", "pods"));
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "{index}");
    }
}

#[test]
fn where_nobody_knows_tokens_one_says_nothing() {
    run(async {
        let authentication = Authentication { anonymous: true, ..Authentication::default() };
        let guard = Guard::new(authentication, Authorization::AlwaysAllow, None, None);
        assert_eq!(ask(&guard, Some("any"), Method::GET, "/pods").await, Ok("system:anonymous".into()));
    });
}

/// Answers about tokens never come, those about rights do.
#[derive(Debug)]
struct Stuck;

impl Reviewer for Stuck {
    fn token<'a>(&'a self, token: &'a Token) -> Answer<'a, Option<Identity>> {
        Box::pin(async move {
            if token.expose().starts_with("forged") {
                std::future::pending::<()>().await;
            }
            Ok(Some(Identity { user: token.expose().to_owned(), ..Identity::default() }))
        })
    }

    fn access<'a>(&'a self, _: &'a Identity, _: &'a str, _: &'a str) -> Answer<'a, bool> {
        Box::pin(async { Ok(true) })
    }
}

#[test]
fn a_flood_of_forged_tokens_shuts_nobody_out() {
    run(async {
        let authentication = Authentication { token_review: Some(TTL), ..Authentication::default() };
        let authorization = Authorization::Review { allowed_ttl: Duration::ZERO, refused_ttl: TTL };
        let guard = Guard::new(authentication, authorization, None, Some(Arc::new(Stuck)));
        let attributes = Attributes::of(&Method::GET, "/pods", ActingVerb::Create);
        let headers = |token: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
            headers
        };
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        assert_eq!(ask(&guard, Some("known"), Method::GET, "/pods").await, Ok("known".into()));

        let forged: Vec<HeaderMap> = (0..1000).map(|number| headers(&format!("forged{number}"))).collect();
        let mut flood = Vec::new();
        let mut refused = 0;
        for headers in &forged {
            let asking = Asking { headers, chain: &[], address: address(1), what: "" };
            let mut one = Box::pin(guard.judge(asking, &attributes));
            match one.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(judged) => {
                    assert_eq!(judged.unwrap_err().status, StatusCode::UNAUTHORIZED);
                    refused += 1;
                }
                Poll::Pending => flood.push(one),
            }
        }
        assert_eq!((flood.len(), refused), (PER_ADDRESS, 1000 - PER_ADDRESS), "the rest is refused at once");
        // Somebody else's token is asked about, and a known user's right (whose answer is not kept here).
        let other = headers("other");
        let asking = Asking { headers: &other, chain: &[], address: address(2), what: "" };
        assert_eq!(guard.judge(asking, &attributes).await.unwrap().user, "other");
        let known = headers("known");
        let asking = Asking { headers: &known, chain: &[], address: address(1), what: "" };
        assert_eq!(guard.judge(asking, &attributes).await.unwrap().user, "known");
        drop(flood);
        let late = headers("late");
        let asking = Asking { headers: &late, chain: &[], address: address(1), what: "" };
        assert_eq!(guard.judge(asking, &attributes).await.unwrap().user, "late", "places are given back");
    });
}
