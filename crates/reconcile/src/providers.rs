//! Registry credentials from programs (`CredentialProviderConfig`): asked when an image is to be pulled, and remembered for as
//! long as they say.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mainstay_config::{CredentialProvider, GoDuration};
use mainstay_podspec::runtime::{Credential, ImageName, Keyring, matches_image};
use mainstay_task::run_program;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// How long a program may take; upstream's.
const DEADLINE: Duration = Duration::from_secs(60);

/// All of them, with what they have answered.
#[derive(Debug)]
pub(crate) struct Providers {
    all: Vec<Provider>,
}

#[derive(Debug)]
struct Provider {
    config: CredentialProvider,
    cache: Mutex<HashMap<CacheKey, (Instant, Keyring)>>,
    /// Who asks about the same image at the same time asks once.
    asking: Mutex<HashMap<String, Arc<Turn>>>,
}

/// Whose turn it is to ask, and when and how it failed last.
type Turn = tokio::sync::Mutex<Option<(Instant, String)>>;

/// What an answer holds for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CacheKey {
    Image(String),
    Registry(String),
    Global,
}

impl CacheKey {
    /// All under which an answer for this image may be found.
    fn all(image: &str) -> [Self; 3] {
        let registry = image.split('/').next().unwrap_or_default();
        [Self::Image(image.to_owned()), Self::Registry(registry.to_owned()), Self::Global]
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Login>>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Providers {
    pub(crate) fn new(providers: Vec<CredentialProvider>) -> Self {
        let provider = |config| Provider { config, cache: Mutex::default(), asking: Mutex::default() };
        Self { all: providers.into_iter().map(provider).collect() }
    }

    /// What the programs say about an image, and which of them failed.
    pub(crate) async fn lookup(&self, image: &ImageName) -> (Vec<Credential>, Vec<String>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for provider in &self.all {
            if !provider.config.match_images.iter().any(|pattern| matches_image(pattern, image)) {
                continue;
            }
            match provider.keyring(&image.repository()).await {
                Ok(keyring) => found.extend(keyring.lookup(image)),
                Err(problem) => {
                    tracing::warn!(provider = provider.config.name, problem, "no registry credentials");
                    problems.push(format!(
                        "Unable to get registry credentials from the provider {:?}: {problem}",
                        provider.config.name
                    ));
                }
            }
        }
        (found, problems)
    }
}

impl Provider {
    async fn keyring(&self, image: &str) -> Result<Keyring, String> {
        if let Some(known) = self.cached(image, Instant::now()) {
            return Ok(known);
        }
        let turn = {
            let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            // Those whom nobody waits for are over.
            asking.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(asking.entry(image.to_owned()).or_default())
        };
        let came = Instant::now();
        let mut turn = turn.lock().await;
        if let Some(known) = self.cached(image, Instant::now()) {
            return Ok(known);
        }
        // What failed while we waited has failed for us, too.
        if let Some((_, problem)) = turn.as_ref().filter(|(when, _)| *when >= came) {
            return Err(problem.clone());
        }
        let answered = match self.ask(image).await {
            Ok(out) => self.understand(&out),
            Err(problem) => Err(problem),
        };
        let kept = answered.and_then(|answer| self.keep(image, answer, Instant::now()));
        *turn = kept.as_ref().err().map(|problem| (Instant::now(), problem.clone()));
        kept
    }

    fn cached(&self, image: &str, now: Instant) -> Option<Keyring> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let found = CacheKey::all(image).into_iter().find_map(|key| cache.get(&key));
        found.filter(|(until, _)| *until > now).map(|(_, keyring)| keyring.clone())
    }

    /// Remembers an answer for as long as it holds.
    fn keep(&self, image: &str, answer: Answer, now: Instant) -> Result<Keyring, String> {
        let [by_image, registry, global] = CacheKey::all(image);
        let key = match answer.cache_key_type.as_str() {
            "Image" => by_image,
            "Registry" => registry,
            "Global" => global,
            other => return Err(format!("its cacheKeyType {other:?} is none of Image, Registry, Global")),
        };
        let logins = answer.auth.into_iter().flatten();
        let keyring =
            Keyring::from_provider(logins.map(|(place, it)| (place, (it.username, it.password))).collect());
        let holds = answer.cache_duration.unwrap_or(self.config.default_cache_duration);
        if holds > GoDuration::ZERO
            && let Some(until) = now.checked_add(holds.as_std())
        {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.retain(|_, (until, _)| *until > now);
            cache.insert(key, (until, keyring.clone()));
        }
        Ok(keyring)
    }

    async fn ask(&self, image: &str) -> Result<Vec<u8>, String> {
        let CredentialProvider { program, args, env, api_version, .. } = &self.config;
        let question = Question { kind: "CredentialProviderRequest", api_version, image };
        let question = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
        let ran = run_program(command, &question, DEADLINE).await;
        ran.map_err(|error| format!("{} {error}", program.display()))
    }

    /// What the parser says is not shown: it may quote a password.
    fn understand(&self, out: &[u8]) -> Result<Answer, String> {
        let answer: Answer =
            serde_json::from_slice(out).map_err(|_| "its output is no CredentialProviderResponse")?;
        if answer.kind != "CredentialProviderResponse" || answer.api_version != self.config.api_version {
            return Err(format!(
                "it answered with {} {}, and CredentialProviderResponse {} was asked for",
                answer.kind, answer.api_version, self.config.api_version
            ));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn provider(dir: &Path, script: &str) -> Providers {
        // Not run itself: who writes a program while others fork may find it busy.
        let file = dir.join("p");
        fs::write(&file, script).unwrap();
        Providers::new(vec![CredentialProvider {
            name: "p".into(),
            program: "/bin/sh".into(),
            match_images: vec!["*.example.com".into()],
            default_cache_duration: GoDuration::from_seconds(600),
            api_version: VERSION.into(),
            args: vec![file.display().to_string(), "get".into()],
            env: vec![("WHO".into(), "puller".into())],
        }])
    }

    fn answer(more: &str) -> String {
        format!(
            r#"printf '{{"kind":"CredentialProviderResponse","apiVersion":"{VERSION}",{more},"auth":{{"*.example.com":{{"username":"%s","password":"s3cret"}}}}}}' "$WHO-$1""#
        )
    }

    async fn users(providers: &Providers, image: &str) -> (Vec<String>, Vec<String>) {
        let (found, problems) = providers.lookup(&ImageName::parse(image).unwrap()).await;
        (found.iter().map(|it| it.auth_config().username).collect(), problems)
    }

    #[tokio::test]
    async fn a_program_is_asked_and_its_answer_holds_for_what_it_says() {
        for (more, images, asked) in [
            (r#""cacheKeyType":"Image""#, ["a.example.com/x", "a.example.com/x", "a.example.com/y"], 2),
            (r#""cacheKeyType":"Registry""#, ["a.example.com/x", "a.example.com/y", "b.example.com/y"], 2),
            (r#""cacheKeyType":"Global""#, ["a.example.com/x", "b.example.com/y", "b.example.com/z"], 1),
            (
                r#""cacheKeyType":"Global","cacheDuration":"0s""#,
                ["a.example.com/x", "a.example.com/x", "a.example.com/x"],
                3,
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let log = dir.path().join("asked");
            let script = format!("cat >> {log}; echo >> {log}; {}", answer(more), log = log.display());
            let providers = provider(dir.path(), &script);
            for image in images {
                let expected = (vec!["puller-get".to_owned()], Vec::new());
                assert_eq!(users(&providers, image).await, expected, "{more} {image}");
            }
            let text = fs::read_to_string(&log).unwrap();
            assert_eq!(text.lines().count(), asked, "{more}: {text}");
            let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            assert_eq!(first["kind"], "CredentialProviderRequest");
            assert_eq!((&first["apiVersion"], &first["image"]), (&VERSION.into(), &images[0].into()));
            assert_eq!(users(&providers, "elsewhere.test/x").await, (Vec::new(), Vec::new()), "not its own");
        }
    }

    #[tokio::test]
    async fn what_a_program_does_wrong_is_named_and_no_password_shown() {
        for (script, named) in [
            ("echo no network >&2; exit 3", "no network"),
            ("echo '{\"password\":\"s3cret\"'", "no CredentialProviderResponse"),
            (&*answer(r#""cacheKeyType":"Other""#), "cacheKeyType"),
            (&*answer(r#""cacheKeyType":"Image""#).replace("k8s.io/v1", "k8s.io/v2"), "was asked for"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (found, problems) = users(&provider(dir.path(), script), "a.example.com/x").await;
            assert!(found.is_empty(), "{script}");
            assert!(problems[0].contains(named) && !problems[0].contains("s3cret"), "{problems:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let mut providers = provider(dir.path(), "true");
        providers.all[0].config.program = dir.path().join("nothing");
        assert!(users(&providers, "a.example.com/x").await.1[0].contains("cannot be started"));
    }
}
