//! Registry credentials from programs (`CredentialProviderConfig`): asked when an image is to be pulled, and remembered for as
//! long as they say.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mainstay_config::{CredentialProvider, GoDuration};
use mainstay_podspec::runtime::{Credential, ImageName, Keyring, matches_image};
use mainstay_policy::PullAccount;
use mainstay_task::run_program;
use mainstay_types::NodeCounters;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use crate::accounts::{Account, Accounts, ForPod};

/// How long a program may take; upstream's.
const DEADLINE: Duration = Duration::from_secs(60);

/// All of them, with what they have answered.
#[derive(Debug)]
pub(crate) struct Providers {
    all: Vec<Provider>,
    accounts: Accounts,
}

/// A way to log in, and the service account by which a program gave it.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) credential: Credential,
    pub(crate) account: Option<PullAccount>,
}

#[derive(Debug)]
struct Provider {
    config: CredentialProvider,
    cache: Mutex<HashMap<(CacheKey, ForWhom), (Instant, Keyring)>>,
    /// Who asks about the same image at the same time for the same account asks once.
    asking: Mutex<HashMap<(String, ForWhom), Arc<Turn>>>,
    counters: Arc<NodeCounters>,
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

/// Whom an answer holds for: where a program is told of service accounts, one of them (upstream: `generateServiceAccountCacheKey`);
/// else everybody.
type ForWhom = Option<ForAccount>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ForAccount {
    who: PullAccount,
    annotations: BTreeMap<String, String>,
    /// A digest of the token, where an answer holds for that alone.
    token: Option<Vec<u8>>,
}

impl ForAccount {
    fn of(account: &Account, per_token: bool) -> Self {
        let Account { who, annotations, token } = account;
        let token = per_token.then(|| Sha256::digest(token.0.as_bytes()).to_vec());
        Self { who: who.clone(), annotations: annotations.clone(), token }
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_token: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
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
    pub(crate) fn new(
        providers: Vec<CredentialProvider>,
        accounts: Accounts,
        counters: Arc<NodeCounters>,
    ) -> Self {
        let provider = |config| Provider {
            config,
            cache: Mutex::default(),
            asking: Mutex::default(),
            counters: Arc::clone(&counters),
        };
        Self { all: providers.into_iter().map(provider).collect(), accounts }
    }

    /// What the programs say about an image for a pod, and which of them failed.
    pub(crate) async fn lookup(&self, image: &ImageName, pod: &ForPod) -> (Vec<Given>, Vec<String>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for provider in &self.all {
            if !provider.config.match_images.iter().any(|pattern| matches_image(pattern, image)) {
                continue;
            }
            match self.ask(provider, image, pod).await {
                Ok(given) => found.extend(given),
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

    /// What one program says: nothing, where it is not for pods like this one.
    async fn ask(&self, provider: &Provider, image: &ImageName, pod: &ForPod) -> Result<Vec<Given>, String> {
        let account = match &provider.config.token {
            Some(wanted) if pod.has_account() && self.accounts.is_there() => {
                match self.accounts.of(pod, wanted).await? {
                    Some(account) => Some(account),
                    None => return Ok(Vec::new()),
                }
            }
            Some(wanted) if wanted.required => return Ok(Vec::new()),
            // Pods from files have no account, and some programs do without.
            Some(_) | None => None,
        };
        let keyring = provider.keyring(&image.repository(), account.as_ref()).await?;
        let account = account.map(|account| account.who);
        let given = keyring.lookup(image).into_iter();
        Ok(given.map(|credential| Given { credential, account: account.clone() }).collect())
    }
}

impl Provider {
    async fn keyring(&self, image: &str, account: Option<&Account>) -> Result<Keyring, String> {
        let per_token = self.config.token.as_ref().is_some_and(|token| token.per_token);
        let whom: ForWhom = account.map(|account| ForAccount::of(account, per_token));
        if let Some(known) = self.cached(image, &whom, Instant::now()) {
            return Ok(known);
        }
        let turn = {
            let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            // Those whom nobody waits for are over.
            asking.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(asking.entry((image.to_owned(), whom.clone())).or_default())
        };
        let came = Instant::now();
        let mut turn = turn.lock().await;
        if let Some(known) = self.cached(image, &whom, Instant::now()) {
            return Ok(known);
        }
        // What failed while we waited has failed for us, too.
        if let Some((_, problem)) = turn.as_ref().filter(|(when, _)| *when >= came) {
            return Err(problem.clone());
        }
        let answered = match self.run(image, account).await {
            Ok(out) => self.understand(&out, account),
            Err(problem) => Err(problem),
        };
        let kept = answered.and_then(|answer| self.keep(image, whom, answer, Instant::now()));
        *turn = kept.as_ref().err().map(|problem| (Instant::now(), problem.clone()));
        kept
    }

    fn cached(&self, image: &str, whom: &ForWhom, now: Instant) -> Option<Keyring> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut places = CacheKey::all(image).into_iter().filter_map(|key| cache.get(&(key, whom.clone())));
        places.find(|(until, _)| *until > now).map(|(_, keyring)| keyring.clone())
    }

    /// Remembers an answer for as long as it holds.
    fn keep(&self, image: &str, whom: ForWhom, answer: Answer, now: Instant) -> Result<Keyring, String> {
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
            cache.insert((key, whom), (until, keyring.clone()));
        }
        Ok(keyring)
    }

    async fn run(&self, image: &str, account: Option<&Account>) -> Result<Vec<u8>, String> {
        let CredentialProvider { program, args, env, api_version, .. } = &self.config;
        let none = BTreeMap::new();
        let question = Question {
            kind: "CredentialProviderRequest",
            api_version,
            image,
            service_account_token: account.map(|account| account.token.0.as_str()),
            service_account_annotations: account.map_or(&none, |account| &account.annotations),
        };
        let question = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
        let begun = Instant::now();
        let ran = run_program(command, &question, DEADLINE).await;
        let name: Arc<str> = self.config.name.as_str().into();
        self.counters.provider_times.of(Arc::clone(&name)).observe(begun.elapsed());
        if ran.is_err() {
            self.counters.provider_errors.of(name).add();
        }
        ran.map_err(|error| format!("{} {error}", program.display()))
    }

    /// What the parser says is not shown: it may quote a password.
    fn understand(&self, out: &[u8], account: Option<&Account>) -> Result<Answer, String> {
        let answer: Answer =
            serde_json::from_slice(out).map_err(|_| "its output is no CredentialProviderResponse")?;
        if answer.kind != "CredentialProviderResponse" || answer.api_version != self.config.api_version {
            return Err(format!(
                "it answered with {} {}, and CredentialProviderResponse {} was asked for",
                answer.kind, answer.api_version, self.config.api_version
            ));
        }
        let for_all = self.config.token.as_ref().is_some_and(|token| !token.per_token);
        let echoes = |account: &Account| {
            answer.auth.iter().flatten().any(|(_, login)| login.password == account.token.0)
        };
        if for_all && account.is_some_and(echoes) {
            return Err("it gave the service account's token back as password, which holds for that token \
                        alone: set tokenAttributes.cacheType to Token"
                .to_owned());
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
        Providers::new(
            vec![CredentialProvider {
                name: "p".into(),
                program: "/bin/sh".into(),
                match_images: vec!["*.example.com".into()],
                default_cache_duration: GoDuration::from_seconds(600),
                api_version: VERSION.into(),
                args: vec![file.display().to_string(), "get".into()],
                env: vec![("WHO".into(), "puller".into())],
                token: None,
            }],
            Accounts::default(),
            Arc::default(),
        )
    }

    fn answer(more: &str) -> String {
        format!(
            r#"printf '{{"kind":"CredentialProviderResponse","apiVersion":"{VERSION}",{more},"auth":{{"*.example.com":{{"username":"%s","password":"s3cret"}}}}}}' "$WHO-$1""#
        )
    }

    async fn users(providers: &Providers, image: &str) -> (Vec<String>, Vec<String>) {
        let image = ImageName::parse(image).unwrap();
        let (found, problems) = providers.lookup(&image, &ForPod::nobody()).await;
        (found.iter().map(|it| it.credential.auth_config().username).collect(), problems)
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

    /// A service account, by its number and that of its token.
    fn account(number: u32, token: u32, role: &str) -> Account {
        Account {
            who: PullAccount { namespace: "n".into(), name: "a".into(), uid: number.to_string() },
            annotations: BTreeMap::from([("role".to_owned(), role.to_owned())]),
            token: crate::accounts::Token(format!("token-{token}")),
        }
    }

    fn attributes(per_token: bool, required: bool) -> mainstay_config::TokenAttributes {
        mainstay_config::TokenAttributes {
            audience: "registry".into(),
            per_token,
            required,
            required_annotations: Vec::new(),
            optional_annotations: vec!["role".into()],
        }
    }

    #[tokio::test]
    async fn answers_hold_for_the_account_or_the_token() {
        let whom = [
            account(1, 1, "x"),
            account(1, 2, "x"),
            account(1, 2, "y"),
            account(2, 2, "x"),
            account(1, 1, "x"),
        ];
        for (per_token, asked) in [(false, 3), (true, 4)] {
            let dir = tempfile::tempdir().unwrap();
            let log = dir.path().join("asked");
            let script = format!(
                "cat >> {log}; echo >> {log}; {}",
                answer(r#""cacheKeyType":"Global""#),
                log = log.display()
            );
            let mut providers = provider(dir.path(), &script);
            providers.all[0].config.token = Some(attributes(per_token, true));
            for account in &whom {
                providers.all[0].keyring("a.example.com/x", Some(account)).await.unwrap();
            }
            let text = fs::read_to_string(&log).unwrap();
            assert_eq!(text.lines().count(), asked, "{per_token}: {text}");
            let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            assert_eq!(first["serviceAccountToken"], "token-1");
            assert_eq!(first["serviceAccountAnnotations"]["role"], "x");
        }
    }

    #[tokio::test]
    async fn a_token_is_no_password_for_a_whole_account() {
        let dir = tempfile::tempdir().unwrap();
        let echo = answer(r#""cacheKeyType":"Image""#).replace("s3cret", "token-1");
        let mut providers = provider(dir.path(), &echo);
        for (per_token, good) in [(true, true), (false, false)] {
            providers.all[0].config.token = Some(attributes(per_token, true));
            let kept = providers.all[0].keyring("a.example.com/x", Some(&account(1, 1, "x"))).await;
            assert_eq!(kept.is_ok(), good, "{kept:?}");
            if let Err(problem) = kept {
                assert!(problem.contains("cacheType") && !problem.contains("token-1"), "{problem}");
            }
        }
    }

    #[tokio::test]
    async fn pods_without_an_account_are_served_only_where_that_is_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let mut providers = provider(dir.path(), &answer(r#""cacheKeyType":"Image""#));
        providers.all[0].config.token = Some(attributes(true, true));
        assert_eq!(users(&providers, "a.example.com/x").await, (Vec::new(), Vec::new()));
        providers.all[0].config.token = Some(attributes(true, false));
        assert_eq!(users(&providers, "a.example.com/x").await.0, ["puller-get"]);
    }
}
