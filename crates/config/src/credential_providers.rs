//! `--image-credential-provider-config`: the programs that know how to log in to registries.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::GoDuration;

/// Versions of the file.
const FILE_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// Versions of what is said to the programs.
const VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// One program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProvider {
    /// Its name, which is also that of its file.
    pub name: String,
    /// The file.
    pub program: PathBuf,
    /// The images that it is asked about.
    pub match_images: Vec<String>,
    /// How long its answer holds unless it says otherwise; zero is not at all.
    pub default_cache_duration: GoDuration,
    /// The version that it speaks.
    pub api_version: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What its environment has beside mainstay's own.
    pub env: Vec<(String, String)>,
    /// `tokenAttributes`: it is given a token of the pod's service account.
    pub token: Option<TokenAttributes>,
}

/// What a program is told of the service account of the pod that an image is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttributes {
    /// `serviceAccountTokenAudience`.
    pub audience: String,
    /// `cacheType`: whether its answers hold for one token (`Token`), or for all of the account (`ServiceAccount`).
    pub per_token: bool,
    /// `requireServiceAccount`: it is not asked for pods that have none.
    pub required: bool,
    /// `requiredServiceAccountAnnotationKeys`: it is not asked for accounts that lack one of them.
    pub required_annotations: Vec<String>,
    /// `optionalServiceAccountAnnotationKeys`.
    pub optional_annotations: Vec<String>,
}

/// Why the providers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// One of two flags is missing.
    #[error(
        "{missing} is not given; --image-credential-provider-config and --image-credential-provider-bin-dir go together"
    )]
    Alone {
        /// The flag.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {path}; give a file, or a directory with .yaml, .yml or .json files", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A directory has no configuration.
    #[error("{path} has no .yaml, .yml or .json file; put a CredentialProviderConfig there", path = path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// A file does not have the right form.
    #[error("{path}: {problem}", path = path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to write instead.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<GoDuration>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    token_attributes: Option<WrittenToken>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenToken {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: String,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// The providers by the two flags, in the order of the file; none if both are empty. `tokens`: the gate
/// KubeletServiceAccountTokenForCredentialProviders. Blocks.
///
/// # Errors
/// [`ProviderError`]: then no image could be pulled that needs them.
pub fn credential_providers(
    config: &str,
    bin_dir: &str,
    tokens: bool,
) -> Result<Vec<CredentialProvider>, ProviderError> {
    match (config, bin_dir) {
        ("", "") => return Ok(Vec::new()),
        ("", _) => return Err(ProviderError::Alone { missing: "--image-credential-provider-config" }),
        (_, "") => return Err(ProviderError::Alone { missing: "--image-credential-provider-bin-dir" }),
        _ => {}
    }
    let mut providers: Vec<CredentialProvider> = Vec::new();
    let mut names = BTreeSet::new();
    for path in files(Path::new(config))? {
        let text =
            fs::read_to_string(&path).map_err(|source| ProviderError::Read { path: path.clone(), source })?;
        let form = |problem| ProviderError::Form { path: path.clone(), problem };
        for provider in parse(&text, Path::new(bin_dir)).map_err(form)? {
            if !names.insert(provider.name.clone()) {
                return Err(form(format!(
                    "providers: {:?} is there twice; give each another name",
                    provider.name
                )));
            }
            if provider.token.is_some() && !tokens {
                return Err(form(format!(
                    "providers, {:?}: tokenAttributes needs the feature gate \
                     KubeletServiceAccountTokenForCredentialProviders, which is off",
                    provider.name
                )));
            }
            if !provider.program.is_file() {
                return Err(form(format!(
                    "providers: there is no program {}; put it there, or take {:?} out",
                    provider.program.display(),
                    provider.name
                )));
            }
            providers.push(provider);
        }
    }
    Ok(providers)
}

/// The file itself, or those of a directory in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, ProviderError> {
    let unread = |source| ProviderError::Read { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(unread)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(unread)? {
        let file = entry.map_err(unread)?.path();
        let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default();
        if ["yaml", "yml", "json"].contains(&extension) && file.is_file() {
            found.push(file);
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(ProviderError::Empty { path: path.to_owned() });
    }
    Ok(found)
}

fn parse(text: &str, bin_dir: &Path) -> Result<Vec<CredentialProvider>, String> {
    let file: File = serde_yaml_ng::from_str(text)
        .map_err(|error| format!("it is no CredentialProviderConfig: {error}"))?;
    if file.kind != "CredentialProviderConfig" || !FILE_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!(
            "it is a {} of {}; write kind CredentialProviderConfig and apiVersion {}",
            file.kind, file.api_version, FILE_VERSIONS[0]
        ));
    }
    if file.providers.is_empty() {
        return Err("providers is empty; name at least one".to_owned());
    }
    file.providers.into_iter().map(|written| check(written, bin_dir)).collect()
}

fn check(written: Written, bin_dir: &Path) -> Result<CredentialProvider, String> {
    let Written { name, match_images, default_cache_duration, api_version, args, env, token_attributes } =
        written;
    let wrong = |field: &str, problem: &str| Err(format!("providers, {name:?}: {field} {problem}"));
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', ' ']) {
        return wrong("name", "must be that of a file in --image-credential-provider-bin-dir");
    }
    if !VERSIONS.contains(&api_version.as_str()) {
        return wrong("apiVersion", &format!("must be one of {}", VERSIONS.join(", ")));
    }
    if match_images.is_empty() || match_images.iter().any(String::is_empty) {
        return wrong(
            "matchImages",
            "must name the images that it is asked about, such as \"*.example.com\"",
        );
    }
    let Some(default_cache_duration) = default_cache_duration else {
        return wrong("defaultCacheDuration", "is missing; write how long an answer holds, such as \"10m\"");
    };
    if default_cache_duration < GoDuration::ZERO {
        return wrong("defaultCacheDuration", "is negative; write \"0s\" to ask each time");
    }
    let token = match token_attributes {
        None => None,
        Some(_) if api_version != VERSIONS[0] => {
            return wrong("tokenAttributes", &format!("needs apiVersion {}", VERSIONS[0]));
        }
        Some(token) => match check_token(token) {
            Ok(token) => Some(token),
            Err((field, problem)) => return wrong(&format!("tokenAttributes.{field}"), &problem),
        },
    };
    let program = bin_dir.join(&name);
    let env = env.into_iter().flatten().map(|variable| (variable.name, variable.value)).collect();
    let args = args.unwrap_or_default();
    Ok(CredentialProvider {
        name,
        program,
        match_images,
        default_cache_duration,
        api_version,
        args,
        env,
        token,
    })
}

/// Upstream's rules; the field that is wrong, and how.
fn check_token(written: WrittenToken) -> Result<TokenAttributes, (&'static str, String)> {
    let WrittenToken {
        service_account_token_audience: audience,
        cache_type,
        require_service_account,
        required_service_account_annotation_keys: required_annotations,
        optional_service_account_annotation_keys: optional_annotations,
    } = written;
    let wrong = |field, problem: &str| Err((field, problem.to_owned()));
    if audience.is_empty() {
        return wrong("serviceAccountTokenAudience", "is missing; write whom the token is for");
    }
    let Some(required) = require_service_account else {
        return wrong("requireServiceAccount", "is missing; write true or false");
    };
    let per_token = match cache_type.as_str() {
        "Token" => true,
        "ServiceAccount" => false,
        _ => return wrong("cacheType", "must be Token or ServiceAccount"),
    };
    if !required && !required_annotations.is_empty() {
        return wrong(
            "requiredServiceAccountAnnotationKeys",
            "must be empty when requireServiceAccount is false",
        );
    }
    let mut seen = BTreeSet::new();
    for (field, keys) in [
        ("requiredServiceAccountAnnotationKeys", &required_annotations),
        ("optionalServiceAccountAnnotationKeys", &optional_annotations),
    ] {
        for key in keys {
            let name = key.rsplit('/').next().unwrap_or_default();
            let plain = |text: &str| text.chars().all(|it| it.is_ascii_alphanumeric() || "-_./".contains(it));
            if name.is_empty() || name.len() > 63 || !plain(key) || key.to_lowercase() != *key {
                return Err((field, format!("{key:?} is no annotation key in lower case")));
            }
            if !seen.insert(key.clone()) {
                return Err((field, format!("{key:?} is there twice")));
            }
        }
    }
    Ok(TokenAttributes { audience, per_token, required, required_annotations, optional_annotations })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: p\n  matchImages: [\"*.example.com\"]\n  defaultCacheDuration: 10m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [get]\n  env: [{name: A, value: b}]\n";

    #[test]
    fn files_are_read_and_mistakes_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bin) = (dir.path().join("c.yaml"), dir.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("p"), "").unwrap();
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            credential_providers(path.to_str().unwrap(), bin.to_str().unwrap(), true)
        };
        let [good] = &read(GOOD).unwrap()[..] else { panic!("one") };
        assert_eq!((good.name.as_str(), &good.program), ("p", &bin.join("p")));
        assert_eq!(good.env, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(good.default_cache_duration, GoDuration::from_seconds(600));
        for (change, with, named) in [
            ("kind: Cred", "kind: Other", "CredentialProviderConfig"),
            ("kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v9", "kubelet.config.k8s.io/v1"),
            ("name: p", "name: q", "there is no program"),
            ("name: p", "name: ../p", "name"),
            ("10m", "-1s", "defaultCacheDuration"),
            ("  defaultCacheDuration: 10m\n", "", "defaultCacheDuration"),
            ("[\"*.example.com\"]", "[]", "matchImages"),
            ("credentialprovider.kubelet.k8s.io/v1", "v1", "apiVersion"),
            ("args:", "arguments:", "arguments"),
            ("args: [get]", "tokenAttributes: {}", "serviceAccountTokenAudience"),
            (
                "args: [get]",
                "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token}",
                "requireServiceAccount",
            ),
            (
                "args: [get]",
                "tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true}",
                "cacheType",
            ),
            (
                "args: [get]",
                "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, \
                 requiredServiceAccountAnnotationKeys: [a/b]}",
                "requiredServiceAccountAnnotationKeys",
            ),
            (
                "args: [get]",
                "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, \
                 requiredServiceAccountAnnotationKeys: [a/b], optionalServiceAccountAnnotationKeys: [a/b]}",
                "twice",
            ),
            (
                "k8s.io/v1\n  args: [get]",
                "k8s.io/v1beta1\n  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, \
                 requireServiceAccount: true}",
                "credentialprovider.kubelet.k8s.io/v1",
            ),
        ] {
            let error = read(&GOOD.replace(change, with)).unwrap_err().to_string();
            assert!(error.contains(named), "{with}: {error}");
        }
        let with_token = GOOD.replace(
            "args: [get]",
            "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: ServiceAccount, requireServiceAccount: true, \
             requiredServiceAccountAnnotationKeys: [example.com/role], optionalServiceAccountAnnotationKeys: [b]}",
        );
        let token = read(&with_token).unwrap().remove(0).token.unwrap();
        assert_eq!((token.audience.as_str(), token.per_token, token.required), ("a", false, true));
        assert_eq!(token.required_annotations, ["example.com/role"]);
        let off = credential_providers(path.to_str().unwrap(), bin.to_str().unwrap(), false);
        assert!(off.unwrap_err().to_string().contains("feature gate"));
        // A directory: all its files, in the order of their names, each provider once.
        read(GOOD).unwrap();
        fs::write(bin.join("a"), "").unwrap();
        fs::write(
            dir.path().join("a.json"),
            serde_json::to_string(
                &serde_yaml_ng::from_str::<serde_json::Value>(&GOOD.replace("name: p", "name: a")).unwrap(),
            )
            .unwrap(),
        )
        .unwrap();
        fs::write(dir.path().join("README"), "no").unwrap();
        let all = |dir: &Path| credential_providers(dir.to_str().unwrap(), bin.to_str().unwrap(), true);
        let names: Vec<_> = all(dir.path()).unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["a", "p"]);
        fs::write(dir.path().join("z.yml"), GOOD).unwrap();
        assert!(all(dir.path()).unwrap_err().to_string().contains("twice"));
        assert!(matches!(all(&bin), Err(ProviderError::Empty { .. })));
        assert!(matches!(credential_providers("/x", "", true), Err(ProviderError::Alone { .. })));
        assert!(credential_providers("", "", true).unwrap().is_empty());
    }
}
