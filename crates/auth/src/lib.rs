//! Who is asking, and may they: authentication and authorization of the node's API.
//!
//! [`Guard::judge`] lets a request through as somebody or refuses it, and says why in the audit log. [`Attributes`] turns a request into a verb on a subresource of the node. [`Authorities`] knows users by their client
//! certificates, [`LocalAccess`] by their tokens and by rules in a file, for nodes without an API server. [`ApiReviewer`] asks the
//! API server (TokenReview, SubjectAccessReview); the guard keeps its answers for a while and asks once for many. Texts and
//! codes of refusals are upstream's.
//!
//! What it does not do: it listens nowhere and starts no task; connections are the API server client's. Files are looked at
//! when a request comes, at most once a second, on blocking threads. A request that nothing here allows is refused.

#![forbid(unsafe_code)]

mod api;
mod attributes;
pub mod audit;
pub mod bearer;
mod cache;
mod der;
mod guard;
mod identity;
pub mod local;
mod merge;
mod places;
mod reload;
mod x509;

pub use api::ApiReviewer;
pub use attributes::{ActingVerb, Attributes};
pub use bearer::{BadToken, Token};
pub use cache::Cache;
pub use guard::{Answer, Asking, Authentication, Authorization, Guard, Refusal, ReviewError, Reviewer};
pub use identity::{ANONYMOUS, AUTHENTICATED, Identity, UNAUTHENTICATED};
pub use local::{LocalAccess, LocalAccessError};
pub use reload::{Parse, ReloadError, Reloaded, Trust};
pub use x509::{Authorities, BundleError, CertificateError, organizations};
