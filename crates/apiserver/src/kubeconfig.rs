//! Reading a kubeconfig: from the file and the files that it names to what a connection needs.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use serde::Deserialize;

use crate::exec::ExecConfig;

/// A kubeconfig that cannot be used. Every message names the file and the field.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file itself.
    #[error("cannot read the kubeconfig {}: {problem}; check --kubeconfig", path.display())]
    Unreadable {
        /// The kubeconfig.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// It is not YAML of the right form.
    #[error("the kubeconfig {} is not valid: {problem}", path.display())]
    Syntax {
        /// The kubeconfig.
        path: PathBuf,
        /// What the parser said.
        problem: String,
    },
    /// Something that a field says.
    #[error("the kubeconfig {}: {field}: {problem}", path.display())]
    Field {
        /// The kubeconfig.
        path: PathBuf,
        /// The field, as `users["node"].user.client-key`.
        field: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// Everything that a connection needs, read.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
    /// The client's certificate chain and key, in PEM.
    pub(crate) identity: Option<Identity>,
    pub(crate) login: Login,
    /// `tls-server-name`.
    pub(crate) server_name: Option<String>,
    /// Host and port of an HTTP proxy.
    pub(crate) proxy: Option<(String, u16)>,
    /// The files that it was read from, as they were.
    pub(crate) files: Vec<(PathBuf, Option<Stamp>)>,
    /// The names of cluster and user, for messages.
    pub(crate) cluster: String,
    pub(crate) user: String,
}

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) https: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// As in the URL, for the `Host` header.
    pub(crate) authority: String,
    /// In front of every path, without a slash at its end.
    pub(crate) prefix: String,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

/// Whose word about the server's certificate counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The machine's root certificates.
    System,
    /// These certificates, in PEM; where they came from.
    Pem(Vec<u8>, String),
    /// `insecure-skip-tls-verify`.
    Unchecked,
}

/// A client certificate.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Where it came from.
    pub(crate) source: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What goes into the `Authorization` header.
#[derive(Clone)]
pub(crate) enum Login {
    None,
    Token(String),
    Basic(String),
    Exec(ExecConfig),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(…)",
            Self::Basic(_) => "Basic(…)",
            Self::Exec(_) => "Exec",
        })
    }
}

/// By these a changed file is known: device, inode, length, when it was written and when anything about it was changed,
/// which nobody can set.
pub(crate) type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    let written = (found.mtime(), found.mtime_nsec());
    Some((found.dev(), found.ino(), found.len(), written, (found.ctime(), found.ctime_nsec())))
}

#[derive(Debug, Deserialize)]
struct File {
    #[serde(rename = "current-context", default)]
    current_context: String,
    #[serde(default)]
    clusters: Option<Vec<NamedCluster>>,
    #[serde(default)]
    users: Option<Vec<NamedUser>>,
    #[serde(default)]
    contexts: Option<Vec<NamedContext>>,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    insecure_skip_tls_verify: bool,
    tls_server_name: String,
    proxy_url: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

impl std::fmt::Debug for NamedUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedUser").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: Option<ExecConfig>,
    auth_provider: Option<serde_yaml_ng::Value>,
    #[serde(rename = "as")]
    impersonate: String,
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Context,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

/// Reads a kubeconfig and the files that it names. Blocks.
pub(crate) fn load(path: &Path) -> Result<Access, KubeconfigError> {
    let mut reader = Reader { path, files: Vec::new() };
    let text = reader
        .read(path)
        .map_err(|error| KubeconfigError::Unreadable { path: path.to_owned(), problem: error.to_string() })?;
    let file: File = serde_yaml_ng::from_slice(&text)
        .map_err(|error| KubeconfigError::Syntax { path: path.to_owned(), problem: error.to_string() })?;
    reader.access(file)
}

struct Reader<'a> {
    path: &'a Path,
    files: Vec<(PathBuf, Option<Stamp>)>,
}

impl Reader<'_> {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        // Before the content: a change in between is seen at the next look.
        self.files.push((path.to_owned(), stamp(path)));
        fs::read(path)
    }

    fn wrong(&self, field: impl Into<String>, problem: impl Into<String>) -> KubeconfigError {
        KubeconfigError::Field { path: self.path.to_owned(), field: field.into(), problem: problem.into() }
    }

    fn access(mut self, file: File) -> Result<Access, KubeconfigError> {
        let contexts = file.contexts.unwrap_or_default();
        let name = file.current_context;
        let context = match contexts.into_iter().find(|context| context.name == name) {
            Some(context) => context.context,
            None if name.is_empty() => {
                return Err(self.wrong("current-context", "it is empty; name one of the contexts"));
            }
            None => return Err(self.wrong("current-context", format!("there is no context {name:?}"))),
        };
        let clusters = file.clusters.unwrap_or_default();
        let Some(cluster) = clusters.into_iter().find(|cluster| cluster.name == context.cluster) else {
            let field = format!("contexts[{name:?}].context.cluster");
            return Err(self.wrong(field, format!("there is no cluster {:?}", context.cluster)));
        };
        let users = file.users.unwrap_or_default();
        let user = match users.into_iter().find(|user| user.name == context.user) {
            Some(user) => user.user,
            None if context.user.is_empty() => User::default(),
            None => {
                let field = format!("contexts[{name:?}].context.user");
                return Err(self.wrong(field, format!("there is no user {:?}", context.user)));
            }
        };
        let (place, cluster) = (format!("clusters[{:?}].cluster", cluster.name), cluster.cluster);
        let server = server(&cluster.server).map_err(|problem| {
            self.wrong(format!("{place}.server"), format!("{:?} {problem}", cluster.server))
        })?;
        let authority = self.authority(&place, &cluster)?;
        let proxy = proxy(&cluster.proxy_url).map_err(|problem| {
            self.wrong(format!("{place}.proxy-url"), format!("{:?} {problem}", cluster.proxy_url))
        })?;
        let who = format!("users[{:?}].user", context.user);
        let identity = self.identity(&who, &user)?;
        let login = self.login(&who, user)?;
        Ok(Access {
            server,
            authority,
            identity,
            login,
            server_name: Some(cluster.tls_server_name).filter(|name| !name.is_empty()),
            proxy,
            files: self.files,
            cluster: place,
            user: who,
        })
    }

    fn authority(&mut self, place: &str, cluster: &Cluster) -> Result<Authority, KubeconfigError> {
        let given = self.bytes(
            (&format!("{place}.certificate-authority"), &cluster.certificate_authority),
            (&format!("{place}.certificate-authority-data"), &cluster.certificate_authority_data),
        )?;
        match (given, cluster.insecure_skip_tls_verify) {
            (Some(_), true) => Err(self.wrong(
                format!("{place}.insecure-skip-tls-verify"),
                "it contradicts the certificate authority beside it; remove one of them",
            )),
            (None, true) => Ok(Authority::Unchecked),
            (Some((pem, source)), false) => {
                crate::tls::roots(&pem).map_err(|problem| self.wrong(&source, problem))?;
                Ok(Authority::Pem(pem, source))
            }
            (None, false) => Ok(Authority::System),
        }
    }

    fn identity(&mut self, who: &str, user: &User) -> Result<Option<Identity>, KubeconfigError> {
        let certificate = self.bytes(
            (&format!("{who}.client-certificate"), &user.client_certificate),
            (&format!("{who}.client-certificate-data"), &user.client_certificate_data),
        )?;
        let key = self.bytes(
            (&format!("{who}.client-key"), &user.client_key),
            (&format!("{who}.client-key-data"), &user.client_key_data),
        )?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some((certificate, source)), Some((key, _))) => {
                let identity = Identity { certificate, key, source };
                crate::tls::certified(&identity).map_err(|problem| self.wrong(&identity.source, problem))?;
                Ok(Some(identity))
            }
            (Some(_), None) => {
                Err(self.wrong(format!("{who}.client-key"), "the client certificate needs its key; set it"))
            }
            (None, Some(_)) => Err(self.wrong(
                format!("{who}.client-certificate"),
                "there is a client key and no certificate for it; set it",
            )),
        }
    }

    fn login(&mut self, who: &str, user: User) -> Result<Login, KubeconfigError> {
        if user.auth_provider.is_some() {
            return Err(self.wrong(format!("{who}.auth-provider"), "it is not supported; use exec"));
        }
        if !user.impersonate.is_empty() {
            return Err(self.wrong(format!("{who}.as"), "a node speaks for itself; remove it"));
        }
        let login = if !user.token_file.is_empty() {
            let field = format!("{who}.tokenFile");
            let path = self.beside(&user.token_file);
            let bytes = self
                .read(&path)
                .map_err(|error| self.wrong(&field, format!("cannot read {}: {error}", path.display())))?;
            let token = String::from_utf8_lossy(&bytes).trim().to_owned();
            if token.is_empty() {
                return Err(self.wrong(&field, format!("{} is empty", path.display())));
            }
            Login::Token(token)
        } else if !user.token.is_empty() {
            Login::Token(user.token)
        } else if !user.username.is_empty() {
            Login::Basic(STANDARD.encode(format!("{}:{}", user.username, user.password)))
        } else if let Some(mut exec) = user.exec {
            let field = format!("{who}.exec");
            exec.check(self.path).map_err(|problem| self.wrong(field, problem))?;
            Login::Exec(exec)
        } else {
            Login::None
        };
        // A header value; a token with a line break in it would be refused at every request.
        if let Login::Token(token) = &login
            && !token.bytes().all(|byte| (0x21..0x7f).contains(&byte))
        {
            let problem = "the token has blanks, line breaks or other characters that no header can carry";
            return Err(self.wrong(format!("{who}.token"), problem));
        }
        Ok(login)
    }

    /// What a file or the field beside it says (which wins, as in client-go), and which of them it was.
    fn bytes(
        &mut self,
        (file_field, file): (&str, &str),
        (data_field, data): (&str, &str),
    ) -> Result<Option<(Vec<u8>, String)>, KubeconfigError> {
        if !data.is_empty() {
            let compact: String = data.split_whitespace().collect();
            let decoded = STANDARD
                .decode(compact)
                .map_err(|error| self.wrong(data_field, format!("it is not base64: {error}")))?;
            return Ok(Some((decoded, data_field.to_owned())));
        }
        if file.is_empty() {
            return Ok(None);
        }
        let path = self.beside(file);
        match self.read(&path) {
            Ok(bytes) => Ok(Some((bytes, format!("{file_field} ({})", path.display())))),
            Err(error) => {
                let problem = format!("cannot read {}: {error}", path.display());
                Err(self.wrong(file_field, problem))
            }
        }
    }

    /// Relative paths are relative to the kubeconfig.
    fn beside(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).join(path)
    }
}

fn server(url: &str) -> Result<Server, &'static str> {
    // client-go takes a bare host for plain HTTP.
    let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = full.parse().map_err(|_| "is not a URL; write https://HOST:PORT")?;
    let https = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err("has a scheme that is neither https nor http"),
    };
    let authority = uri.authority().ok_or("names no host; write https://HOST:PORT")?;
    if authority.as_str().contains('@') {
        return Err("has a user in it; put that under users");
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err("names no host; write https://HOST:PORT");
    }
    let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
    if uri.query().is_some() {
        return Err("has a query; remove it");
    }
    let prefix = uri.path().trim_end_matches('/').to_owned();
    Ok(Server { https, host, port, authority: authority.as_str().to_owned(), prefix })
}

fn proxy(url: &str) -> Result<Option<(String, u16)>, &'static str> {
    if url.is_empty() {
        return Ok(None);
    }
    let uri: Uri = url.parse().map_err(|_| "is not a URL; write http://HOST:PORT")?;
    if uri.scheme_str() != Some("http") {
        return Err("is not an http:// proxy, the only kind that is supported");
    }
    let authority = uri.authority().ok_or("names no host; write http://HOST:PORT")?;
    if authority.as_str().contains('@') {
        return Err("has a user in it, which is not supported");
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Some((host, authority.port_u16().unwrap_or(80))))
}

#[cfg(test)]
mod tests;
