//! Tokens of service accounts that are bound to pods.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use mainstay_types::{FullName, ServiceToken, TokenKey};

use crate::{ApiError, Client, Scope};

/// A token is renewed when this part of its life is over, and at the latest after a day (upstream's).
const RENEW_AT: f64 = 0.8;
const RENEW_BY: Duration = Duration::from_secs(24 * 3600);
/// One that is as good as over is not asked for anew in a circle.
const RENEW_NOT_BEFORE: Duration = Duration::from_secs(5);

/// Asks for a token that is bound to the pod.
///
/// # Errors
/// [`ApiError`]; status 404 when there is no such account, 403 when the node may not have a token for that audience.
pub async fn bound_token(
    client: &Client,
    key: &TokenKey,
    pod: &FullName,
    account: &str,
) -> Result<ServiceToken, ApiError> {
    let wish = TokenRequest {
        spec: Some(TokenRequestSpec {
            // None is the API server itself.
            audiences: Some([key.audience.clone()].into_iter().filter(|it| !it.is_empty()).collect()),
            expiration_seconds: Some(key.expiration_seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name.to_string()),
                uid: Some(key.pod.as_str().to_owned()),
            }),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let scope = Scope::Namespace(&pod.namespace);
    let made: TokenRequest =
        client.create_part::<ServiceAccount, _, _>(scope, (account, "token"), &wish).await?;
    let status = made.status.unwrap_or_default();
    match (status.token, status.expiration_timestamp) {
        (Some(token), Some(expires)) if !token.is_empty() => {
            // How long it is good counts from now: the API server's clock may be another.
            let lifetime = made.spec.map(|spec| spec.expiration_seconds.unwrap_or_default());
            let lifetime = lifetime.filter(|seconds| *seconds > 0).map(jiff::SignedDuration::from_secs);
            let counted = lifetime.and_then(|lifetime| Timestamp::now().checked_add(lifetime).ok());
            Ok(ServiceToken { token, expires: counted.unwrap_or(expires.0) })
        }
        _ => Err(ApiError::Decode {
            request: format!("a token of the service account {account}"),
            problem: "there is none in it".to_owned(),
        }),
    }
}

/// How long a token that is good for so long from now on is left as it is. `luck`, from 0 to 1, lets those of many pods not all
/// be renewed at once.
#[must_use]
pub fn renew_token_after(left: Duration, luck: f64) -> Duration {
    left.mul_f64(RENEW_AT - 0.1 * luck.clamp(0.0, 1.0)).clamp(RENEW_NOT_BEFORE, RENEW_BY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_well_before_they_expire() {
        let minutes = |number: u64| Duration::from_secs(60 * number);
        let rows = [
            ("the shortest that can be asked for", minutes(10), 0.0, minutes(8)),
            ("the same, with luck", minutes(10), 1.0, minutes(7)),
            (
                "the usual hour and seven seconds",
                Duration::from_secs(3607),
                0.0,
                Duration::from_millis(2_885_600),
            ),
            ("a day is long enough for any", minutes(60 * 48), 0.0, minutes(60 * 24)),
            ("over already", Duration::ZERO, 0.5, Duration::from_secs(5)),
            ("luck beyond all measure", minutes(10), 9.0, minutes(7)),
        ];
        for (name, left, luck, expected) in rows {
            assert_eq!(renew_token_after(left, luck), expected, "{name}");
        }
    }
}
