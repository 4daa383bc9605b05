//! Credentials from a program (`client.authentication.k8s.io`).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use mainstay_task::{ProgramError, run_program};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::kubeconfig::{Access, Authority, Identity};

/// How long the program may take. Longer than any cloud's, shorter than it takes a person to wonder.
const DEADLINE: Duration = Duration::from_secs(60);
/// Versions of the protocol, the newest first.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// `users[].user.exec`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExecConfig {
    api_version: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<ExecEnv>>,
    install_hint: String,
    provide_cluster_info: bool,
    interactive_mode: String,
    /// The command with its directory, where it is not searched on `PATH`.
    #[serde(skip)]
    program: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct ExecEnv {
    name: String,
    value: String,
}

/// What the program said.
#[derive(Clone)]
pub(crate) struct ExecCredential {
    pub(crate) token: Option<String>,
    pub(crate) identity: Option<Identity>,
    expires: Option<Timestamp>,
}

impl std::fmt::Debug for ExecCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecCredential").field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl ExecCredential {
    pub(crate) fn holds_at(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    #[serde(default)]
    token: String,
    #[serde(default)]
    client_certificate_data: String,
    #[serde(default)]
    client_key_data: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: &'a str,
    spec: Spec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterInfo>,
    interactive: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterInfo {
    server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    insecure_skip_tls_verify: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
}

impl ExecConfig {
    /// What is wrong with it, and where the command is.
    pub(crate) fn check(&mut self, kubeconfig: &Path) -> Result<(), String> {
        if self.command.is_empty() {
            return Err("command is empty; name the program that has the credentials".into());
        }
        if !VERSIONS.contains(&self.api_version.as_str()) {
            return Err(format!("apiVersion {:?} is not one of {}", self.api_version, VERSIONS.join(", ")));
        }
        if self.interactive_mode == "Always" {
            return Err("interactiveMode is Always, and there is nobody to ask; set Never".into());
        }
        self.program = if self.command.contains('/') {
            kubeconfig.parent().unwrap_or(Path::new("/")).join(&self.command)
        } else {
            PathBuf::from(&self.command)
        };
        Ok(())
    }

    /// Runs the program.
    pub(crate) async fn run(&self, access: &Access) -> Result<ExecCredential, String> {
        let question = Question {
            kind: "ExecCredential",
            api_version: &self.api_version,
            spec: Spec {
                cluster: self.provide_cluster_info.then(|| ClusterInfo::of(access)),
                interactive: false,
            },
        };
        let question = serde_json::to_string(&question).map_err(|error| error.to_string())?;
        let field = format!("{}.exec: {}", access.user, self.program.display());
        let mut command = Command::new(&self.program);
        command
            .args(self.args.iter().flatten())
            .envs(self.env.iter().flatten().map(|variable| (&variable.name, &variable.value)))
            .env("KUBERNETES_EXEC_INFO", question);
        let out = run_program(command, b"", DEADLINE).await.map_err(|error| match error {
            ProgramError::Start(_) | ProgramError::Failed { .. } => {
                format!("{field} {error}. {}", self.install_hint)
            }
            ProgramError::TooLate(_) | ProgramError::Wait(_) => format!("{field} {error}"),
        })?;
        self.understand(&out, access).map_err(|problem| format!("{field}: {problem}"))
    }

    fn understand(&self, out: &[u8], access: &Access) -> Result<ExecCredential, String> {
        let answer: Answer =
            serde_json::from_slice(out).map_err(|error| format!("its output is not JSON: {error}"))?;
        if answer.kind != "ExecCredential" || answer.api_version != self.api_version {
            return Err(format!(
                "it answered with {} {}, and ExecCredential {} was asked for",
                answer.kind, answer.api_version, self.api_version
            ));
        }
        let status = answer.status.ok_or("its ExecCredential has no status")?;
        let token = Some(status.token).filter(|token| !token.is_empty());
        let identity = match (status.client_certificate_data.is_empty(), status.client_key_data.is_empty()) {
            (true, true) => None,
            (false, false) => {
                let identity = Identity {
                    certificate: status.client_certificate_data.into_bytes(),
                    key: status.client_key_data.into_bytes(),
                    source: format!("{}.exec", access.user),
                };
                crate::tls::certified(&identity)?;
                Some(identity)
            }
            _ => return Err("of clientCertificateData and clientKeyData it gave only one".into()),
        };
        if token.is_none() && identity.is_none() {
            return Err("its ExecCredential has neither a token nor a client certificate".into());
        }
        Ok(ExecCredential { token, identity, expires: status.expiration_timestamp })
    }
}

impl ClusterInfo {
    fn of(access: &Access) -> Self {
        Self {
            server: access.server.to_string(),
            tls_server_name: access.server_name.clone(),
            insecure_skip_tls_verify: access.authority == Authority::Unchecked,
            certificate_authority_data: match &access.authority {
                Authority::Pem(pem, _) => Some(STANDARD.encode(pem)),
                Authority::System | Authority::Unchecked => None,
            },
        }
    }
}
