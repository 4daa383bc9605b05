//! The API server as the one who knows: TokenReview and SubjectAccessReview.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    Resource,
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec},
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    },
};
use mainstay_apiserver::{ApiError, Client, Rate, Scope};
use mainstay_task::Backoff;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Answer, Identity, ReviewError, Reviewer, Token};

/// So often a question is asked, with these pauses; upstream's.
const TRIES: u32 = 5;
const RETRY: Backoff =
    Backoff::doubling(Duration::from_millis(500), Duration::from_secs(5)).with_factor(1.5).with_jitter(0.2);
/// How long one try may take,
const TRY: Duration = Duration::from_secs(10);
/// and all of them together.
const ALL: Duration = Duration::from_secs(30);

/// Asks the API server about tokens, and about what users may do to this node.
#[derive(Clone, Debug)]
pub struct ApiReviewer {
    tokens: Client,
    rights: Client,
    node_name: Arc<str>,
}

impl ApiReviewer {
    /// A reviewer that asks so often about tokens, and so often about rights: strangers cause the former, and neither known
    /// users nor the node's own requests shall wait for them.
    #[must_use]
    pub fn new(client: &Client, rate: Rate, node_name: Arc<str>) -> Self {
        let client = client.with_deadline(TRY);
        Self { tokens: client.with_rate(rate), rights: client.with_rate(rate), node_name }
    }

    async fn ask<T: Resource + Serialize + DeserializeOwned>(
        client: &Client,
        review: &T,
    ) -> Result<T, ReviewError> {
        let work = async {
            let mut attempts = RETRY.attempts();
            loop {
                let error = match client.create(Scope::Cluster, review).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                let pause = attempts.failed();
                if !is_worth_another(&error) || attempts.failures() >= TRIES {
                    return Err(ReviewError(error.to_string()));
                }
                tokio::time::sleep(pause.max(error.retry_after().unwrap_or_default())).await;
            }
        };
        match tokio::time::timeout(ALL, work).await {
            Ok(done) => done,
            Err(_) => Err(ReviewError(format!("no answer of {} within {ALL:?}", client.server()))),
        }
    }
}

/// As upstream: a server that cannot be reached at all is not waited for. Nor is a turn that would not come in time.
fn is_worth_another(error: &ApiError) -> bool {
    error.is_transient() && !matches!(error, ApiError::Connect { .. } | ApiError::Busy { .. })
}

impl Reviewer for ApiReviewer {
    fn token<'a>(&'a self, token: &'a Token) -> Answer<'a, Option<Identity>> {
        Box::pin(async move {
            let spec = TokenReviewSpec { token: token.expose().to_owned(), audiences: None };
            let review = TokenReview { spec, ..TokenReview::default() };
            let status = Self::ask(&self.tokens, &review).await?.status.unwrap_or_default();
            if status.authenticated != Some(true) {
                // With a reason it is the API server that could not tell, and its answer is not kept.
                return match status.error.filter(|error| !error.is_empty()) {
                    Some(error) => Err(ReviewError(error)),
                    None => Ok(None),
                };
            }
            let user = status.user.unwrap_or_default();
            let name = user.username.unwrap_or_default();
            if name.is_empty() {
                return Err(ReviewError("the token is good, and the API server says for nobody".into()));
            }
            Ok(Some(Identity {
                user: name,
                uid: user.uid.filter(|uid| !uid.is_empty()),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            }))
        })
    }

    fn access<'a>(&'a self, who: &'a Identity, verb: &'a str, subresource: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let resource_attributes = ResourceAttributes {
                verb: some(verb),
                version: some("v1"),
                resource: some("nodes"),
                subresource: some(subresource),
                name: some(&self.node_name),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: some(&who.user),
                uid: who.uid.clone(),
                groups: Some(who.groups.clone()).filter(|groups| !groups.is_empty()),
                extra: Some(who.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(resource_attributes),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            Ok(Self::ask(&self.rights, &review)
                .await?
                .status
                .is_some_and(|status| status.allowed && status.denied != Some(true)))
        })
    }
}
