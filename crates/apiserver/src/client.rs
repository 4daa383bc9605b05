//! Requests, typed by the objects they are about.

use std::{collections::BTreeMap, marker::PhantomData, path::PathBuf, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use k8s_openapi::{
    ListableResource, Resource,
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Status, WatchEvent},
};
use mainstay_task::TaskGroup;
use mainstay_types::ApiCalls;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    ApiError, KubeconfigError, Listing, Rate,
    connection::{Answer, Connections, Outgoing, SentOn, Stream, chain},
    credentials::{Credentials, Ready},
    limit::Limiter,
    readable::{Readable, check_object, one},
    validity,
};

/// How long a request may take unless its caller says otherwise, waiting for its turn included.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long an answer may be: a list of all that one node has is far below.
const MAX_ANSWER: usize = 64 << 20;
/// How long one event of a watch may be: etcd keeps no object above 1.5 MB.
const MAX_EVENT: usize = 8 << 20;
/// How much of an answer that is not a `Status` is shown.
const SHOWN: usize = 300;

/// A client of one API server; clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
    limiter: Arc<Limiter>,
    deadline: Duration,
}

#[derive(Debug)]
struct Inner {
    credentials: Credentials,
    connections: Connections,
    user_agent: HeaderValue,
    calls: Arc<ApiCalls>,
}

/// Where objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// In no namespace, or in all of them.
    Cluster,
    /// In this one.
    Namespace(&'a str),
}

/// Which objects to list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// `fieldSelector`.
    pub fields: Option<String>,
    /// `labelSelector`.
    pub labels: Option<String>,
    /// `resourceVersion`: `Some("0")` is whatever the server has at hand.
    pub resource_version: Option<String>,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Patch {
    /// `application/merge-patch+json`.
    Merge(serde_json::Value),
    /// `application/strategic-merge-patch+json`.
    Strategic(serde_json::Value),
    /// `application/apply-patch+yaml`, as this manager; force takes fields from others.
    Apply {
        /// The object's wanted part.
        object: serde_json::Value,
        /// `fieldManager`.
        manager: String,
        /// `force`.
        force: bool,
    },
}

impl Client {
    /// Reads the kubeconfig. Nothing is sent yet: a server that is away now may come later.
    ///
    /// # Errors
    /// [`KubeconfigError`], which names the field or file.
    pub fn open(
        kubeconfig: impl Into<PathBuf>,
        rate: Rate,
        user_agent: &str,
        tasks: &TaskGroup,
    ) -> Result<Self, KubeconfigError> {
        let calls: Arc<ApiCalls> = Arc::default();
        let credentials = Credentials::open(kubeconfig.into(), Arc::clone(&calls), tasks)?;
        let user_agent = HeaderValue::try_from(user_agent).unwrap_or(HeaderValue::from_static("mainstay"));
        let connections = Connections::new(tasks);
        Ok(Self {
            inner: Arc::new(Inner { credentials, connections, user_agent, calls }),
            limiter: Arc::new(Limiter::new(rate)),
            deadline: DEADLINE,
        })
    }

    /// The same client with a rate of its own, so that one kind of requests does not wait for another.
    #[must_use]
    pub fn with_rate(&self, rate: Rate) -> Self {
        Self { limiter: Arc::new(Limiter::new(rate)), ..self.clone() }
    }

    /// The same client with another deadline for each request.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The server's URL.
    #[must_use]
    pub fn server(&self) -> String {
        self.inner.credentials.server()
    }

    /// How many requests were made, how they ended and how long they took.
    #[must_use]
    pub fn calls(&self) -> &Arc<ApiCalls> {
        &self.inner.calls
    }

    /// One object.
    ///
    /// # Errors
    /// [`ApiError`]; status 404 when there is none.
    pub async fn get<T: Resource + DeserializeOwned>(
        &self,
        scope: Scope<'_>,
        name: &str,
    ) -> Result<T, ApiError> {
        self.call(Method::GET, path::<T>(scope, Some(name), None), &[], None, |text| one(text, true)).await
    }

    /// All objects that match.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn list<T>(&self, scope: Scope<'_>, query: &Query) -> Result<Listing<T>, ApiError>
    where
        T: ListableResource + DeserializeOwned,
    {
        let query = query.pairs();
        let path = path::<T>(scope, None, None);
        self.call(Method::GET, path, &query, None, |text| serde_json::from_slice(text)).await
    }

    /// Makes an object and returns what the server made of it.
    ///
    /// # Errors
    /// [`ApiError`]; status 409 when there is one already.
    pub async fn create<T: Resource + Serialize + DeserializeOwned>(
        &self,
        scope: Scope<'_>,
        object: &T,
    ) -> Result<T, ApiError> {
        // A review is made as objects are, and not kept.
        let path = path::<T>(scope, None, None);
        self.call(Method::POST, path, &[], Some(json(object)?), |text| one(text, false)).await
    }

    /// Makes something below an object, such as a token of a service account, and returns what the server made of it.
    ///
    /// # Errors
    /// [`ApiError`]; status 404 when there is no such object.
    pub async fn create_part<T: Resource, B: Serialize, R: Resource + DeserializeOwned>(
        &self,
        scope: Scope<'_>,
        (name, subresource): (&str, &str),
        body: &B,
    ) -> Result<R, ApiError> {
        let path = path::<T>(scope, Some(name), Some(subresource));
        self.call(Method::POST, path, &[], Some(json(body)?), |text| one(text, false)).await
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// [`ApiError`]; status 409 when another was quicker.
    pub async fn replace<T: Resource + Serialize + DeserializeOwned>(
        &self,
        scope: Scope<'_>,
        name: &str,
        object: &T,
    ) -> Result<T, ApiError> {
        let path = path::<T>(scope, Some(name), None);
        self.call(Method::PUT, path, &[], Some(json(object)?), |text| one(text, true)).await
    }

    /// Changes an object, or with a subresource (`status`) that part of it.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn patch<T: Resource + DeserializeOwned>(
        &self,
        scope: Scope<'_>,
        (name, subresource): (&str, Option<&str>),
        patch: &Patch,
    ) -> Result<T, ApiError> {
        let (kind, object) = match patch {
            Patch::Merge(object) => ("application/merge-patch+json", object),
            Patch::Strategic(object) => ("application/strategic-merge-patch+json", object),
            Patch::Apply { object, .. } => ("application/apply-patch+yaml", object),
        };
        let query = match patch {
            Patch::Apply { manager, force, .. } => {
                vec![("fieldManager", manager.clone()), ("force", force.to_string())]
            }
            Patch::Merge(_) | Patch::Strategic(_) => Vec::new(),
        };
        let path = path::<T>(scope, Some(name), subresource);
        let body = (HeaderValue::from_static(kind), json(object)?.1);
        self.call(Method::PATCH, path, &query, Some(body), |text| one(text, true)).await
    }

    /// Deletes an object. The server answers with the object or a `Status`; neither is of interest here.
    ///
    /// # Errors
    /// [`ApiError`]; status 404 when there is none.
    pub async fn delete<T: Resource>(
        &self,
        scope: Scope<'_>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let path = path::<T>(scope, Some(name), None);
        let body = Some(json(options)?);
        let any = |text: &[u8]| serde_json::from_slice::<IgnoredAny>(text);
        self.call(Method::DELETE, path, &[], body, any).await.map(drop)
    }

    /// Watches objects from a version on, for as long as the server lets (it is asked for `lifetime`). Bookmarks are asked for.
    ///
    /// # Errors
    /// [`ApiError`]; status 410 when the version is too old.
    pub(crate) async fn watch<T>(
        &self,
        scope: Scope<'_>,
        query: &Query,
        lifetime: Duration,
    ) -> Result<Watch<T>, ApiError>
    where
        T: ListableResource + DeserializeOwned,
    {
        let mut pairs = query.pairs();
        pairs.push(("watch", "true".into()));
        pairs.push(("allowWatchBookmarks", "true".into()));
        pairs.push(("timeoutSeconds", lifetime.as_secs().to_string()));
        let mut outgoing = self.outgoing(Method::GET, path::<T>(scope, None, None), &pairs, None);
        outgoing.lasting = true;
        let name = outgoing.name();
        let sent = SentOn::default();
        let work = async {
            self.turn(&outgoing).await?;
            let (answer, ready) = self.exchange(&outgoing, &sent).await?;
            if answer.response.status().is_success() {
                return Ok(answer);
            }
            let (status, headers) = (answer.response.status(), answer.response.headers().clone());
            let body = self.read(answer, &outgoing, &ready).await?;
            Err(failure(&outgoing, status, &headers, &body))
        };
        let answer = self.within(&outgoing, &sent, work).await?;
        Ok(Watch {
            body: answer.response.into_body(),
            _stream: answer.stream,
            buffer: BytesMut::new(),
            searched: 0,
            name,
            server: self.server(),
            // A server that forgets to end it, and a peer that is gone without a word, are not waited for.
            until: Instant::now() + lifetime + DEADLINE,
            objects: PhantomData,
        })
    }

    async fn call<T>(
        &self,
        method: Method,
        path: String,
        query: &[(&str, String)],
        body: Option<(HeaderValue, Bytes)>,
        decode: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, ApiError> {
        let outgoing = self.outgoing(method, path, query, body);
        let sent = SentOn::default();
        let work = async {
            self.turn(&outgoing).await?;
            let (answer, ready) = self.exchange(&outgoing, &sent).await?;
            let (status, headers) = (answer.response.status(), answer.response.headers().clone());
            let body = self.read(answer, &outgoing, &ready).await?;
            if !status.is_success() {
                return Err(failure(&outgoing, status, &headers, &body));
            }
            decode(&body)
                .map_err(|error| ApiError::Decode { request: outgoing.name(), problem: error.to_string() })
        };
        self.within(&outgoing, &sent, work).await
    }

    /// Waits for the request's turn, if that comes within its deadline.
    async fn turn(&self, outgoing: &Outgoing) -> Result<(), ApiError> {
        let turn = self.limiter.turn(self.deadline).await;
        turn.map_err(|wait| ApiError::Busy { request: outgoing.name(), wait })
    }

    /// Sends it, and once more with other credentials if those were refused and there are others.
    async fn exchange(&self, outgoing: &Outgoing, sent: &SentOn) -> Result<(Answer, Ready), ApiError> {
        let credentials = &self.inner.credentials;
        let mut ready = credentials.ready().await?;
        let mut answer = self.send(&ready, outgoing, sent).await?;
        if answer.response.status() == StatusCode::UNAUTHORIZED && credentials.refused(&ready).await {
            ready = credentials.ready().await?;
            answer = self.send(&ready, outgoing, sent).await?;
        }
        if answer.response.status() == StatusCode::UNAUTHORIZED {
            return Err(unauthorized(outgoing, &ready));
        }
        Ok((answer, ready))
    }

    /// Sends it and counts it, also if nobody waits for the answer any longer.
    async fn send(&self, ready: &Ready, outgoing: &Outgoing, sent: &SentOn) -> Result<Answer, ApiError> {
        let mut counted = Counted {
            calls: &self.inner.calls,
            method: method_word(&outgoing.method),
            begun: Instant::now(),
            status: None,
        };
        let answer = self.inner.connections.send(ready, outgoing, sent).await?;
        counted.status = Some(answer.response.status().as_u16());
        Ok(answer)
    }

    async fn within<T>(
        &self,
        outgoing: &Outgoing,
        sent: &SentOn,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(self.deadline, work).await {
            Ok(done) => done,
            Err(_) => {
                // Perhaps only this request is slow, perhaps the connection is dead: the next one will know.
                self.inner.connections.distrust(sent);
                Err(ApiError::Timeout {
                    server: self.server(),
                    request: outgoing.name(),
                    deadline: self.deadline,
                })
            }
        }
    }

    fn outgoing(
        &self,
        method: Method,
        mut path: String,
        query: &[(&str, String)],
        body: Option<(HeaderValue, Bytes)>,
    ) -> Outgoing {
        for (index, (name, value)) in query.iter().enumerate() {
            path.push(if index == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            escape(&mut path, value);
        }
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.inner.user_agent.clone());
        let body = body.map(|(kind, bytes)| {
            headers.insert(CONTENT_TYPE, kind);
            bytes
        });
        Outgoing { method, path, headers, body: body.unwrap_or_default(), lasting: false }
    }

    async fn read(&self, answer: Answer, outgoing: &Outgoing, ready: &Ready) -> Result<Bytes, ApiError> {
        let mut body = answer.response.into_body();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::Broken {
                server: ready.material.server.to_string(),
                request: outgoing.name(),
                problem: chain(&error),
            })?;
            // Trailers are of no interest.
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > MAX_ANSWER - bytes.len() {
                return Err(ApiError::TooLarge { request: outgoing.name(), limit: MAX_ANSWER });
            }
            bytes.extend_from_slice(&data);
        }
        if let Some(lease) = answer.lease {
            self.inner.connections.give_back(lease);
        }
        Ok(bytes.freeze())
    }
}

/// A request under way; counted when dropped.
struct Counted<'a> {
    calls: &'a ApiCalls,
    method: &'static str,
    begun: Instant,
    status: Option<u16>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.calls.add(self.status, self.method, self.begun.elapsed());
    }
}

fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// Events of a watch, as they come.
#[derive(Debug)]
pub(crate) struct Watch<T> {
    body: Incoming,
    _stream: Option<Stream>,
    buffer: BytesMut,
    /// So many bytes at the buffer's beginning have no line break.
    searched: usize,
    name: String,
    server: String,
    until: Instant,
    objects: PhantomData<fn() -> T>,
}

impl<T: Resource + DeserializeOwned> Watch<T> {
    /// The next event; `None` when the server has ended the watch, as it does from time to time. Cancel safe.
    ///
    /// # Errors
    /// [`ApiError`], after which there is nothing more to be had.
    pub(crate) async fn next(&mut self) -> Option<Result<WatchEvent<Readable<T>>, ApiError>> {
        loop {
            if let Some(line) = self.line() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Some(decode_event(&line).map_err(|error| ApiError::Decode {
                    request: self.name.clone(),
                    problem: error.to_string(),
                }));
            }
            if self.buffer.len() > MAX_EVENT {
                return Some(Err(ApiError::TooLarge { request: self.name.clone(), limit: MAX_EVENT }));
            }
            match tokio::time::timeout_at(self.until, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Ok(Some(Err(error))) => {
                    return Some(Err(ApiError::Broken {
                        server: self.server.clone(),
                        request: self.name.clone(),
                        problem: chain(&error),
                    }));
                }
                Ok(None) | Err(_) => return None,
            }
        }
    }

    fn line(&mut self) -> Option<Bytes> {
        let fresh = self.buffer.get(self.searched..)?;
        match fresh.iter().position(|byte| *byte == b'\n') {
            Some(place) => {
                let line = self.buffer.split_to(self.searched + place).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                Some(line)
            }
            None => {
                self.searched = self.buffer.len();
                None
            }
        }
    }
}

impl Query {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("fieldSelector", &self.fields),
            ("labelSelector", &self.labels),
            ("resourceVersion", &self.resource_version),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }
}

fn path<T: Resource>(scope: Scope<'_>, name: Option<&str>, subresource: Option<&str>) -> String {
    let mut path = if T::GROUP.is_empty() {
        format!("/api/{}", T::VERSION)
    } else {
        format!("/apis/{}", T::API_VERSION)
    };
    if let Scope::Namespace(namespace) = scope {
        path.push_str("/namespaces/");
        escape(&mut path, namespace);
    }
    path.push('/');
    path.push_str(T::URL_PATH_SEGMENT);
    for part in [name, subresource].into_iter().flatten() {
        path.push('/');
        escape(&mut path, part);
    }
    path
}

/// Appends a text with everything escaped that is not plain.
fn escape(into: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                into.push(char::from(byte))
            }
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

fn json<T: Serialize>(object: &T) -> Result<(HeaderValue, Bytes), ApiError> {
    let bytes = serde_json::to_vec(object).map_err(|error| ApiError::Decode {
        request: "a request that was to be made".into(),
        problem: error.to_string(),
    })?;
    Ok((HeaderValue::from_static("application/json"), bytes.into()))
}

fn failure(outgoing: &Outgoing, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ApiError {
    let said: Option<Status> = serde_json::from_slice(body).ok();
    let retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let (reason, message) = match said {
        Some(said) => (said.reason.unwrap_or_default(), said.message.unwrap_or_default()),
        None => {
            let text = String::from_utf8_lossy(body);
            (
                status.canonical_reason().unwrap_or_default().to_owned(),
                text.trim().chars().take(SHOWN).collect(),
            )
        }
    };
    ApiError::Status { request: outgoing.name(), status: status.as_u16(), reason, message, retry_after }
}

fn unauthorized(outgoing: &Outgoing, ready: &Ready) -> ApiError {
    let material = &ready.material;
    let hint = match (&material.identity, &ready.header) {
        (Some(identity), _) => match validity::expired(&identity.certificate) {
            Some(expired) => {
                format!("the client certificate of {} expired at {expired}; give a new one", identity.source)
            }
            None => format!("does it trust the authority that signed {}?", identity.source),
        },
        (None, Some(_)) => "the token is not or no longer valid there; give a new one".into(),
        (None, None) => "there are none; give a client certificate or a token".into(),
    };
    ApiError::Unauthorized {
        server: material.server.to_string(),
        user: material.user.clone(),
        request: outgoing.name(),
        hint,
    }
}
/// One line of a watch. The type's own way reads the object into a tree first and turns that into an object, which is slower
/// and needs all the code for reading objects once more.
fn decode_event<T: Resource + DeserializeOwned>(
    line: &[u8],
) -> Result<WatchEvent<Readable<T>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Line<'a> {
        r#type: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: Mark,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Mark {
        #[serde(default)]
        annotations: BTreeMap<String, String>,
        resource_version: String,
    }
    let line: Line<'_> = serde_json::from_slice(line)?;
    let object = line.object.get();
    if line.r#type != "ERROR" {
        check_object::<T>(object)?;
    }
    Ok(match line.r#type {
        "ADDED" => WatchEvent::Added(Readable::of(object)?),
        "MODIFIED" => WatchEvent::Modified(Readable::of(object)?),
        "DELETED" => WatchEvent::Deleted(Readable::of(object)?),
        "BOOKMARK" => {
            let Mark { annotations, resource_version } = serde_json::from_str::<Bookmark>(object)?.metadata;
            WatchEvent::Bookmark { annotations, resource_version }
        }
        "ERROR" => WatchEvent::ErrorStatus(serde_json::from_str(object)?),
        other => {
            return Err(serde::de::Error::unknown_variant(
                other,
                &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"],
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn lines_of_a_watch() {
        let decode = |line: &str| decode_event::<Pod>(line.as_bytes());
        for (kind, expected) in [("ADDED", 0), ("MODIFIED", 1), ("DELETED", 2)] {
            let line = format!(
                r#"{{"object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"a","resourceVersion":"3"}}}},"type":"{kind}"}}"#
            );
            let (found, pod) = match decode(&line).unwrap() {
                WatchEvent::Added(Readable::Whole(pod)) => (0, pod),
                WatchEvent::Modified(Readable::Whole(pod)) => (1, pod),
                WatchEvent::Deleted(Readable::Whole(pod)) => (2, pod),
                other => panic!("{other:?}"),
            };
            assert_eq!((found, pod.metadata.name.as_deref()), (expected, Some("a")));
        }
        let mark = decode(
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","creationTimestamp":null},"spec":{"containers":null}}}"#,
        );
        assert!(
            matches!(mark, Ok(WatchEvent::Bookmark { resource_version, .. }) if resource_version == "12")
        );
        let gone = decode(
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410,"reason":"Expired"}}"#,
        );
        assert!(matches!(gone, Ok(WatchEvent::ErrorStatus(status)) if status.code == Some(410)));
        let strange = decode(
            r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"3"},"spec":7}}"#,
        );
        assert!(matches!(strange, Ok(WatchEvent::Added(Readable::Not(pod))) if pod.name == "a"));
        for bad in [
            "",
            "{}",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":7}"#,
            r#"{"type":"NEW","object":{}}"#,
            r#"{"type":"DELETED","object":{}}"#,
            r#"{"type":"DELETED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"3"}}}"#,
            r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}}"#,
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}"#,
        ] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
