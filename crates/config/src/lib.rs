//! What a node is told to be: `KubeletConfiguration`, the flags of `kubelet`, feature gates.
//!
//! Every option is defined once, as a line of a table (`kubelet.rs`, `kubelet/parts.rs`, `settings.rs`): name, type,
//! default, sentence, flag, check, and whether it is acted upon yet. Strict parsing, flags, defaults, [`explain`],
//! [`markdown`] and [`not_yet`] all read that table.
//!
//! ```
//! let flags = mainstay_config::parse_kubelet_flags(["--max-pods=20", "-v2"]).expect("good flags");
//! let loaded = mainstay_config::load(&flags).expect("good configuration");
//! assert_eq!(loaded.config.max_pods, 20);
//! assert_eq!(loaded.config.logging.verbosity, 2);
//! ```
//!
//! What it does not do: it starts no tasks, keeps no state, watches no file, looks at no host ([`check_host`] is given
//! the facts) and logs nothing; notices are returned. Only `files.rs` reads files, when [`load`] is called.
#![forbid(unsafe_code)]

mod catalog;
mod credential_providers;
mod decode;
mod definition;
mod document;
mod duration;
mod explain;
mod files;
mod flags;
mod gates;
mod kubelet;
mod layers;
mod load;
mod names;
mod nearest;
mod problem;
mod quantity;
mod secret;
mod settings;
mod validate;

pub use catalog::{Entry, fields, not_yet, settings};
pub use credential_providers::{CredentialProvider, ProviderError, TokenAttributes, credential_providers};
pub use definition::{Check, Definition, Flag, FlagStyle, Kind, Section};
pub use duration::{DurationError, GoDuration};
pub use explain::{UnknownOption, explain, markdown, not_yet_text};
pub use flags::{FlagSet, VersionRequest, help, parse_kubelet_flags};
pub use gates::{FeatureGates, Gate, Stage, find_gate, known_gates};
pub use kubelet::{
    API_VERSION, AnonymousAuthentication, Authentication, Authorization, CrashLoopBackOff, JsonOutputRouting,
    KIND, KubeletConfiguration, Logging, LoggingOptions, MemoryReservation, MemorySwap, OutputRouting,
    PriorityGracePeriod, Taint, Tracing, UserNamespaces, VModuleItem, WebhookAuthentication,
    WebhookAuthorization, X509Authentication,
};
pub use load::{Loaded, NotYet, load, load_text};
pub use problem::Problem;
pub use quantity::Quantity;
pub use secret::{MASK, SecretHeaders};
pub use settings::Settings;
pub use validate::{HostFacts, check_host, validate, validate_settings};
