//! What mainstay calls itself.

/// The version string: the Kubernetes API level, then our own release.
pub const VERSION: &str = concat!("v1.37.1+mainstay.", env!("CARGO_PKG_VERSION"));
/// Major version of the Kubernetes API spoken.
pub const API_VERSION_MAJOR: &str = "1";
/// Minor version of the Kubernetes API spoken.
pub const API_VERSION_MINOR: &str = "37";

/// `1.37`, the version in user agents such as `kube-lifecycle/1.37`.
#[must_use]
pub fn user_agent_version() -> String {
    format!("{API_VERSION_MAJOR}.{API_VERSION_MINOR}")
}
